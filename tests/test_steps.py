"""What each update of a run is done with: its learning rate, its noise and its mode; and the loss of an epoch."""

import statistics

import pytest
import torch
from tests.test_run import Plane, rows
from tests.training_runs import finish
from torch import Tensor

from rotationout.experiments.config import Config


class Watched(Plane):
    """Notes what every update is done with."""

    def __init__(self, config: Config) -> None:
        data = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
        super().__init__(config, data, torch.device("cpu"))
        self.rates: list[float] = []
        self.strengths: list[float] = []
        self.modes: list[bool] = []
        self.each_loss: list[float] = []

    def batch_loss(self) -> Tensor:
        loss = super().batch_loss()
        self.rates.append(round(float(self.optimizer.param_groups[0]["lr"]), 6))
        self.strengths.append(round(float(self.network[1].p), 6))
        self.modes.append(self.network.training)
        self.each_loss.append(loss.item())
        return loss


def watched(**changes: object) -> Watched:
    run = Watched(rows()[1].replace(**changes))
    finish(run)
    return run


def test_the_learning_rate_changes_at_its_milestones_and_after_the_warm_up() -> None:
    """Updates are counted from 0: that of number 5, the sixth, is the first after a milestone at 5."""
    run = watched(learning_rate=0.1, milestones=(5, 11), rate_factor=0.5, warmup=2)
    assert run.rates == [0.05, 0.1, 0.1, 0.1, 0.1] + [0.05] * 6 + [0.025] * 2


def test_a_ramp_begins_with_the_first_update_and_a_fade_would_be_at_zero_after_the_last() -> None:
    run = watched(p=0.4, ramp=4, fade_out=4)
    assert run.strengths == [0.1, 0.2, 0.3] + [0.4] * 7 + [0.3, 0.2, 0.1]
    assert run.network[1].p == pytest.approx(0.1), "studies of the trained network need the last noise"


def test_every_update_is_in_training_mode_also_after_a_test() -> None:
    assert watched().modes == [True] * 13


def test_the_loss_of_an_epoch_is_the_mean_over_its_updates() -> None:
    """Also of the last epoch, in which there are three updates instead of five."""
    run = watched()
    parts = (run.each_loss[:5], run.each_loss[5:10], run.each_loss[10:])
    assert run.losses == pytest.approx([statistics.fmean(part) for part in parts])
