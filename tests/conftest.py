"""Every test starts from the same seed: failures can be repeated, and statistical tests always give the same answer."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(20191118)
