"""What `rotate` and `rotation_out` refuse, and what they say of it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import rotationout as ro
from rotationout.functional import rotate, rotation_out

X = torch.randn(4, 6)
NESTED = torch.nested.nested_tensor([X, X[:2]], layout=torch.jagged)
FITTING = ro.sample_rotation((4, 6), 0.2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: rotation_out(X.long(), 0.5),
            TypeError,
            r"16 to 64 bits.*got torch.int64.*x.float\(\)",
        ),
        (lambda: rotation_out(X.to(torch.complex64), 0.5), TypeError, "got torch.complex64"),
        (lambda: rotation_out(X.to_sparse(), 0.5), TypeError, r"a dense tensor, got torch.sparse_coo.*x.to_dense\(\)"),
        (lambda: rotation_out(NESTED, 0.5), TypeError, r"got a nested one; pad it, x.to_padded_tensor"),
        (
            lambda: rotation_out(X, 0.5, mask=torch.ones(4).bool().to("meta")),
            ValueError,
            "mask is on meta and x on cpu",
        ),
        (lambda: rotation_out(X, 0.5, generator=3), TypeError, r"generator must be a torch.Generator, .*got int 3"),
        (lambda: rotation_out(X.to(torch.float8_e4m3fn), 0.5), TypeError, "got torch.float8"),
        (lambda: rotation_out(X, 0.5, center=False), ValueError, "None or a tensor with the mean, got False"),
        (lambda: rotation_out(X, 0.5, center=torch.zeros(1)), ValueError, r"center must have shape \(6,\)"),
        (lambda: rotation_out(X, 0.5, center=torch.zeros(6).to(torch.complex64)), TypeError, "center must be a real"),
        (lambda: rotation_out(X, 0.5, draw="structured"), TypeError, "draw must be a Draw, got str 'structured'"),
        (lambda: rotation_out(X, 0.5, coverage=0.5), ValueError, "give block_size too"),
        (lambda: rotation_out(X, 0.5, training=False, mask=torch.ones(3)), TypeError, "mask must be a boolean"),
        (lambda: rotate(X, FITTING, 0.5), TypeError, "mean must be a real floating-point tensor, got float"),
        (lambda: rotation_out([1.0, 2.0], 0.5), TypeError, "x must be a Tensor, got list"),
        (lambda: rotation_out(torch.tensor(1.0), 0.5), ValueError, "without dimensions"),
        (lambda: rotation_out(X[:, :1], 0.5), ValueError, "dim = -1 has size 1"),
        (lambda: rotation_out(X[:, :0], 0.5), ValueError, "dim = -1 has size 0"),
        (lambda: rotation_out(X[:, :1], 0.5, training=False), ValueError, "dim = -1 has size 1"),
        (lambda: rotation_out(X, 0.5, dim=5), IndexError, "dim = 5 does not exist"),
        (lambda: rotation_out(X, 1.0), ValueError, r"must be in \[0, 1\), got 1.0"),
        (lambda: rotation_out(X, float("nan")), ValueError, "got nan"),
        (lambda: rotation_out(X, "half"), TypeError, "p must be a number, got str"),
        (lambda: rotation_out(X, 0.5, center="mean"), ValueError, "center must be one of 'batch' or None or a tensor"),
        (lambda: rotation_out(X[:1], 0.5, center="batch"), ValueError, "more than one value per feature"),
        (lambda: rotation_out(X, 0.9, draw=ro.Draw(law="gaussian_angle")), ValueError, "reaches λ = 1.85"),
        (lambda: rotation_out(X, 0.5, block_size=2), ValueError, "axes after the feature axis"),
        (lambda: rotation_out(X, 0.5, dim=0, batch_dim=None, block_size=0), ValueError, "integer, at least 1"),
        (
            lambda: rotation_out(X, 0.5, dim=0, batch_dim=None, block_size=2, coverage=0.0),
            ValueError,
            r"\(0, 1\], got 0\.0",
        ),
        (
            lambda: rotation_out(X, 0.5, dim=0, batch_dim=None, block_size=2, coverage="half"),
            TypeError,
            "coverage must be a number, got str 'half'",
        ),
        (
            lambda: rotation_out(X, 0.5, dim=0, batch_dim=None, block_size=2, coverage=True),
            TypeError,
            "coverage must be a number, got bool True",
        ),
        (
            lambda: rotation_out(X, 0.5, mask=torch.ones(4)),
            TypeError,
            "mask must be a boolean tensor.* got torch.float32",
        ),
        (lambda: rotation_out(X, 0.5, mask=[True] * 4), TypeError, "mask must be a boolean tensor.* got list"),
        (
            lambda: rotation_out(X, 0.5, mask=torch.ones(3, dtype=torch.bool)),
            ValueError,
            r"mask must broadcast to \(4,\), .* got \(3,\)$",
        ),
        (lambda: rotation_out(X, 0.5, backend="cuda"), ValueError, "backend must be one of .*'triton' or None, got"),
        (lambda: rotate(X, FITTING.matrix()), TypeError, "rotation must be a Rotation, got Tensor"),
        (lambda: rotate(X[:, :4], FITTING), ValueError, "rotation turns 6 features, but x has 4 along dim = -1"),
        (lambda: rotate(X[:3], FITTING), ValueError, r"leading shape \(4,\), which .* to \(3,\), the shape \(3, 6\)"),
        (lambda: rotate(X[0], FITTING), ValueError, r"does not broadcast to \(\)"),
        (lambda: rotate(X, FITTING, torch.zeros(5)), ValueError, r"mean must have shape \(6,\)"),
        (lambda: rotate(X, FITTING, torch.zeros(1)), ValueError, r"mean must have shape \(6,\)"),
        (
            lambda: rotate(X.to("meta"), FITTING),
            ValueError,
            r"rotation is on cpu and .*; move it with rotation.to\('meta'\)",
        ),
        (lambda: rotate(X, FITTING, torch.zeros(6, device="meta")), ValueError, "mean is on meta and x on cpu"),
    ],
)
def test_bad_input_says_what_would_be_right(call: Callable[[], Tensor], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
