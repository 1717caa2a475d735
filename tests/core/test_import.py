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
