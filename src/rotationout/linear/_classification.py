"""A softmax classifier trained under noise: `NoisyLogisticRegression`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import log_expit, log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from .. import strength
from ..functional.elementwise import multiply
from ..functional.rotation import rotation_out
from ..rotation import Draw
from ._sample import Array

__all__ = ["NOISES", "NoisyLogisticRegression"]

NOISES = ("rotation", "dropout", "gaussian", "uout")

HELD = 2**26
"""Noisy copies with up to this many elements are kept between steps; larger ones are redrawn from the same seed."""

MOST = 2**26
"""The most elements of noisy copies that ``n_copies="auto"`` makes."""

TOGETHER = 2**20
"""Copies are batched into tensors of up to this many elements: small ones cost more in calls than in arithmetic."""


class NoisyLogisticRegression(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Multinomial logistic regression that is trained under noise and predicts without it (label logistic).

    Minimises the mean of −log softmax(W x̃ + b) over the training set and ``n_copies`` noisy copies x̃ of it, by L-BFGS.
    The copies are drawn once, so the loss is a smooth convex function and the result depends on the seed alone; the
    noise is the only regularisation. First all features are divided by one common number, which does not change the
    noise.

    Args:
        noise: ``"rotation"``, ``"dropout"``, ``"gaussian"`` or ``"uout"``, of equal strength at equal p.
        p: drop probability of the equally strong Dropout; 0 is logistic regression without a penalty.
        n_copies: how many noisy copies of the training set approximate the expectation. With too few rows per weight,
            copies included, the model memorises the noise: ``"auto"`` makes enough copies for 100 rows per weight, at
            least 8, but no more than 2²⁶ numbers in all.
        fit_intercept: fit b, to which no noise is applied; the noise is then about the mean of the training set,
            otherwise about the origin.
        tol: L-BFGS stops when the largest derivative is below this.
        max_iter: the most steps of L-BFGS.
        random_state: the seed of the noise.

    Attributes:
        classes_: the labels.
        coef_: W, (classes, D), or (1, D) for two classes: the weights of the second minus those of the first.
        intercept_: b, (classes,) or (1,).
        n_iter_: steps taken.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = NoisyLogisticRegression(noise="rotation", p=0.1, n_copies=8, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    """

    classes_: Array
    coef_: Array
    intercept_: Array

    def __init__(
        self,
        noise: str = "rotation",
        p: float = 0.5,
        *,
        n_copies: int | str = "auto",
        fit_intercept: bool = True,
        tol: float = 1e-4,
        max_iter: int = 1000,
        random_state: Any = None,
    ) -> None:
        self.noise = noise
        self.p = p
        self.n_copies = n_copies
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> NoisyLogisticRegression:
        """Train on features (n, D) and labels (n,)."""
        kind = strength.check_choice("noise", self.noise, NOISES)
        rate = strength.check_rate(self.p)
        copies = self.n_copies
        if copies != "auto":
            copies = strength.check_integer("n_copies", copies, 1, also="'auto'")
        fewest = 2 if kind == "rotation" else 1  # a pair
        X, y = validate_data(self, X, y, dtype=(np.float64, np.float32), ensure_min_features=fewest)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have at least 2 classes, got one class, {self.classes_[0]!r}")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))

        mean = X.mean(0) if self.fit_intercept else np.zeros(X.shape[1], X.dtype)
        features = torch.from_numpy(np.subtract(X, mean, order="C"))
        largest = features.abs().max().item() or 1.0  # first, as squares of the features might overflow or vanish
        features /= largest
        common = features.square().mean().sqrt().item() or 1.0
        features /= common
        if copies == "auto":
            enough = max(8, math.ceil(100 * X.shape[1] * len(self.classes_) / len(X)))
            copies = max(1, min(enough, MOST // X.size))
        # The features are centred, so noise about their mean is noise about the origin.
        copied = _Copies(features, kind, rate, int(copies) if rate else 1, seed)
        loss = _Loss(copied, torch.from_numpy(labels), len(self.classes_), bias=self.fit_intercept)
        options = {"maxiter": self.max_iter, "gtol": self.tol, "ftol": 0.0, "maxfun": 10 * self.max_iter}
        found = minimize(loss, np.zeros(loss.size), jac=True, method="L-BFGS-B", options=options)
        steepest = float(abs(found.jac).max())
        if steepest > self.tol:
            warnings.warn(
                f"L-BFGS stopped after {found.nit} steps with a largest derivative of {steepest:.2g}, above "
                f"tol = {self.tol:g}; raise tol or max_iter = {self.max_iter}",
                ConvergenceWarning,
                stacklevel=2,
            )
        self.n_iter_ = int(found.nit)
        weight, bias = loss.split(found.x)
        if len(self.classes_) == 2:
            weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
        self.coef_ = weight / common / largest
        self.intercept_ = bias - self.coef_ @ mean
        return self

    def decision_function(self, X: Any) -> Array:
        """W x + b, (n, classes), or (n,) for two classes: positive for the second."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        scores = X @ self.coef_.T + self.intercept_
        return np.asarray(scores[:, 0] if scores.shape[1] == 1 else scores)

    def predict_proba(self, X: Any) -> Array:
        """The probability of every class, (n, classes), without noise."""
        return np.asarray(np.exp(self.predict_log_proba(X)))

    def predict_log_proba(self, X: Any) -> Array:
        """The logarithm of `predict_proba`, finite even where a probability rounds to zero."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.stack([log_expit(-scores), log_expit(scores)], axis=1)
        return np.asarray(log_softmax(scores, axis=1))

    def predict(self, X: Any) -> Array:
        """The most probable label of every row."""
        scores = self.decision_function(X)
        index = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)
        return np.asarray(self.classes_[index])


class _Copies:
    """Noisy copies of features, a few at a time, (copies·n, D); every iteration gives the same copies."""

    def __init__(self, features: Tensor, kind: str, p: float, number: int, seed: int) -> None:
        self.features, self.kind, self.p, self.number, self.seed = features, kind, p, number, seed
        self._held = list(self._draw()) if number * features.numel() <= HELD else None

    def __iter__(self) -> Iterator[Tensor]:
        source: Iterable[Tensor] = self._draw() if self._held is None else self._held
        return iter(source)

    def _draw(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        together = max(1, TOGETHER // self.features.numel())
        for start in range(0, self.number, together):
            rows = self.features.repeat(min(together, self.number - start), 1)
            yield _disturb(rows, self.kind, self.p, generator)


def _disturb(x: Tensor, kind: str, p: float, generator: torch.Generator) -> Tensor:
    """Noise about the origin, as the layers make it by default."""
    if kind == "rotation":
        return rotation_out(x, p, draw=Draw(pairing="structured"), generator=generator)
    scale = strength.convert(p, "dropout", kind)
    return multiply(kind, x, scale, p > 0, dim=-1, center=None, mask=None, sync=False, generator=generator)


class _Loss:
    """The mean cross-entropy over noisy copies and its gradient, as a function of all parameters in one vector."""

    def __init__(self, copies: _Copies, labels: Tensor, classes: int, *, bias: bool) -> None:
        self.copies, self.labels, self.classes, self.bias = copies, labels, classes, bias
        self.width = copies.features.shape[1] + bias
        self.size = classes * self.width

    def split(self, parameters: Array) -> tuple[Array, Array]:
        """Weights (classes, D) and biases (classes,)."""
        table = parameters.reshape(self.classes, self.width)
        return (table[:, :-1], table[:, -1]) if self.bias else (table, np.zeros(self.classes))

    def __call__(self, parameters: Array) -> tuple[float, Array]:
        features = self.copies.features
        weight, bias = (torch.from_numpy(part).to(features.dtype) for part in self.split(parameters))
        value, gradient = 0.0, torch.zeros(self.classes, self.width, dtype=torch.float64)
        for noisy in self.copies:
            labels = self.labels.repeat(len(noisy) // len(features))[:, None]
            log_probability = torch.addmm(bias, noisy, weight.T).log_softmax(1)
            value -= log_probability.gather(1, labels).sum(dtype=torch.float64).item()
            error = log_probability.exp_().scatter_add_(1, labels, noisy.new_full(labels.shape, -1))
            gradient[:, : features.shape[1]] += error.T @ noisy
            if self.bias:
                gradient[:, -1] += error.sum(0)
        rows = self.copies.number * len(features)
        return value / rows, gradient.flatten().numpy() / rows
