"""The core needs torch alone."""

import subprocess
import sys

SCRIPT = """
import sys
for name in ("triton", "torchvision", "sklearn", "matplotlib", "rich", "jinja2", "scipy"):
    sys.modules[name] = None  # importing it fails
import torch
import rotationout as ro
for layer, shape in ((ro.RotationOut(0.5), (8, 32)), (ro.RotationOut2d(0.5), (4, 6, 5, 5))):
    x = torch.randn(shape, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
"""


def test_the_core_imports_and_trains_with_torch_alone() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT], check=True)


def test_names_are_imported_when_they_are_used() -> None:
    """Every public one can be had; others are refused as by any module; torch waits for the first."""
    script = """
import sys
import rotationout as ro
assert "torch" not in sys.modules
assert set(ro.__all__) <= set(dir(ro))
assert all(name in ro.__all__ or name.startswith("__") for name in dir(ro)), dir(ro)
assert ro.strength.convert(0.5, "gaussian_tan", "dropout") == 0.2
assert "torch" not in sys.modules, "the strengths need no torch"
assert all(getattr(ro, name) is not None for name in ro.__all__)
assert set(ro.__all__) == set(ro._MODULES) | set(ro._HOMES)
assert ro.RotationOut is ro.nn.RotationOut is vars(ro)["RotationOut"]
assert not hasattr(ro, "nothing")
assert "kinds" in dir(ro), "it is imported"
assert ro.analysis.relu_moments is not None, "a module that no other has imported"
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)
