"""The variance shift of noise before BatchNorm (section 3.2, label 118), by theory.

BatchNorm normalises y = W x. In training, noise is on, and the variance that BatchNorm records is larger than that at
test time, by a ratio r for every output. Dropout-a has the noise after the weights, on y; Dropout-b before them, on x.
Every noise of `rotationout.analysis.noise_law` may take Dropout's place, centred or not.

A convolution is such a layer on patches, if the noises of the positions in a patch are independent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..strength import check_choice, check_integer
from .law import NoiseLaw, noise_law
from .moments import check_moments, check_single, total_moments

__all__ = ["PLACEMENTS", "ShiftSample", "expected_shift", "limit_ratio", "sample_shift", "variance_ratio"]

PLACEMENTS = ("a", "b")
"""``"a"``, after the weights and directly before BatchNorm; ``"b"``, before the weights."""


def variance_ratio(
    noise: nn.Module | NoiseLaw,
    weight: Tensor,
    mean: Tensor,
    covariance: Tensor,
    *,
    placement: str = "b",
    rows: int | None = None,
) -> Tensor:
    """Train-mode over test-mode variance, r = Var[ỹ] / Var[y], for every output of a weight layer (label 118).

    Centred Dropout-a has r = 1 / (1 − p) whatever the weights. r is at least 1 for all noises here.

    Args:
        noise: a noise layer or its law. A running mean is that of x or y, whichever the noise is on.
        weight: W, (…, n, D).
        mean: c, the mean of x, (D,).
        covariance: Σ, that of x, (D, D).
        placement: ``"a"``, the noise is on y = W x; or ``"b"``, on x.
        rows: the number of rows in a batch mean, see `rotationout.analysis.total_moments`.

    Returns:
        (…, n); NaN for an output that does not vary.

    >>> import rotationout as ro
    >>> weight, c, sigma = torch.tensor([[1.0, 1.0], [1.0, -1.0]]), torch.ones(2), torch.eye(2)
    >>> variance_ratio(ro.noise("dropout", 0.5), weight, c, sigma, placement="a")  # 2 + (w·c)² / wΣw
    tensor([4., 2.], dtype=torch.float64)
    >>> variance_ratio(ro.noise("dropout", 0.5), weight, c, sigma, placement="b")
    tensor([3., 3.], dtype=torch.float64)
    >>> variance_ratio(ro.noise("centred-dropout", 0.5), weight, c, sigma, placement="a")
    tensor([2., 2.], dtype=torch.float64)
    """
    check_choice("placement", placement, PLACEMENTS)
    law = noise_law(noise)
    c, sigma = check_moments(mean, covariance)
    check_single(c, sigma)
    if not isinstance(weight, Tensor) or weight.ndim < 2 or weight.size(-1) != c.size(-1):
        got = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
        raise ValueError(f"weight must have shape (…, n, {c.size(-1)}) for a mean of {c.size(-1)} features, got {got}")
    w = weight.detach().to(sigma)
    test = _quadratic(w, sigma)
    if placement == "b":
        return _quadratic(w, total_moments(law, c, sigma, rows=rows).covariance) / test
    output = w @ c
    if law.center is None:
        disturbed = test + output**2
    elif isinstance(law.center, Tensor):
        if law.center.numel() != output.size(-1):
            raise ValueError(
                f"the noise is about a mean of {law.center.numel()} features, but weight has {output.size(-1)} outputs"
            )
        disturbed = test + (output - law.center.to(output)) ** 2
    else:
        disturbed = test * (1.0 if rows is None else (rows - 1) / rows)
    return 1 + law.variance(disturbed) / test


def expected_shift(noise: nn.Module | NoiseLaw, mean: Tensor, covariance: Tensor, *, rows: int | None = None) -> float:
    """E[Var[ỹ | w] − Var[y | w]] over weights w uniform on the unit sphere, the same for Dropout-a and Dropout-b.

    It is λ·(trace(Σ) + cᵀc) / D for noise about the origin and λ·trace(Σ) / D about the mean, for all noises here. (The
    paper omits 1 / D.)

    Args:
        noise: a noise layer or its law.
        mean: c, the mean of x, (D,).
        covariance: Σ, that of x, (D, D).
        rows: the number of rows in a batch mean, see `rotationout.analysis.total_moments`.

    >>> import rotationout as ro
    >>> expected_shift(ro.noise("dropout", 0.5), torch.ones(4), 3 * torch.eye(4))
    4.0
    """
    c, sigma = check_moments(mean, covariance)
    check_single(c, sigma)
    added = total_moments(noise, c, sigma, rows=rows).variance - sigma.diagonal()
    return added.mean().item()


def limit_ratio(noise: nn.Module | NoiseLaw, mean: Tensor, covariance: Tensor, *, rows: int | None = None) -> float:
    """E[Var[ỹ | w]] / E[Var[y | w]], around which r of Dropout-b gathers as D grows: 1 + λ·(1 + cᵀc / trace(Σ)).

    It is 1 + λ for noise about the mean. It is not 1, as proposition 3 of Li et al. (2019) would have it: more features
    only bring the ratios of the outputs closer to each other. This is for random weights w, and if no few directions
    hold most of the variance. The arguments are those of `expected_shift`.

    >>> import rotationout as ro
    >>> limit_ratio(ro.noise("dropout", 0.5), torch.ones(4), 2 * torch.eye(4))
    2.5
    """
    shift = expected_shift(noise, mean, covariance, rows=rows)
    return 1 + shift / covariance.diagonal().double().mean().item()


@dataclass(frozen=True, eq=False)
class ShiftSample:
    """The ratio r over random weights.

    Attributes:
        ratio: r, (layers, outputs).

    >>> ShiftSample(torch.tensor([[1.0, 2.0], [3.0, 2.0]]))
    ShiftSample(mean=2, variance=0.6667, maximum of 2 outputs=2.5, layers=2)
    """

    ratio: Tensor

    @property
    def mean(self) -> float:
        """E[r] over weights."""
        return self.ratio.mean().item()

    @property
    def variance(self) -> float:
        """Var[r] over weights: what sets Dropout-a and Dropout-b apart."""
        return self.ratio.var().item()

    @property
    def maximum(self) -> Tensor:
        """The largest r of each layer, (layers,)."""
        return self.ratio.amax(-1)

    def __repr__(self) -> str:
        layers, outputs = self.ratio.shape
        return (
            f"ShiftSample(mean={self.mean:.4g}, variance={self.variance:.4g}, "
            f"maximum of {outputs} outputs={self.maximum.mean().item():.4g}, layers={layers})"
        )


def sample_shift(
    noise: nn.Module | NoiseLaw,
    mean: Tensor,
    covariance: Tensor,
    *,
    placement: str = "b",
    outputs: int = 64,
    layers: int = 100,
    generator: torch.Generator | None = None,
) -> ShiftSample:
    """Sample the ratio r of layers whose weights are uniform on the sphere.

    Args:
        noise: a noise layer or its law.
        mean: c, the mean of x, (D,).
        covariance: Σ, that of x, (D, D).
        placement: ``"a"``, the noise is on y = W x; or ``"b"``, on x.
        outputs: n, the rows of W.
        layers: how many W to draw.
        generator: where the weights come from; torch's default generator if not given.

    >>> import rotationout as ro
    >>> features = ro.analysis.relu_moments(torch.eye(64))
    >>> for kind in ("dropout", "centred-dropout"):
    ...     sample = sample_shift(ro.noise(kind, 0.5), features.mean, features.covariance, placement="a")
    ...     print(kind, round(sample.mean, 1), round(sample.variance, 1))
    dropout 2.5 0.4
    centred-dropout 2.0 0.0
    """
    layers = check_integer("layers", layers, 1)
    outputs = check_integer("outputs", outputs, 1)
    check_moments(mean, covariance)
    # r does not depend on the length of a row, so a Gaussian one is as good as one on the sphere.
    weight = torch.randn(
        layers, outputs, mean.size(-1), dtype=torch.float64, device=covariance.device, generator=generator
    )
    return ShiftSample(variance_ratio(noise, weight, mean, covariance, placement=placement))


def _quadratic(weight: Tensor, matrix: Tensor) -> Tensor:
    """For every row w of the weights, w M wᵀ."""
    return (weight @ matrix * weight).sum(-1)
