"""What each update of a run is done with, and what is made of the epochs: their loss, and the results of a run."""

import statistics

import pytest
import torch
from tests.cifar_images import images
from tests.test_run import Plane, rows
from tests.test_training import _small as _small  # a fixture
from tests.test_training import config, make
from tests.training_runs import assert_tests_in_eval_mode, finish
from torch import Tensor

from rotationout.experiments import cifar
from rotationout.experiments.config import Config


class Watched(Plane):
    """Notes what every update is done with."""

    def __init__(self, config: Config) -> None:
        data = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
        super().__init__(config, data, torch.device("cpu"))
        self.rates: list[float] = []
        self.modes: list[bool] = []
        self.each_loss: list[float] = []

    def batch_loss(self) -> Tensor:
        loss = super().batch_loss()
        self.rates.append(round(float(self.optimizer.param_groups[0]["lr"]), 6))
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


def test_every_update_is_in_training_mode_also_after_a_test() -> None:
    assert watched().modes == [True] * 13


def test_the_loss_of_an_epoch_is_the_mean_over_its_updates() -> None:
    """Also of the last epoch, in which there are three updates instead of five."""
    run = watched()
    parts = (run.each_loss[:5], run.each_loss[5:10], run.each_loss[10:])
    assert run.losses == pytest.approx([statistics.fmean(part) for part in parts])


@pytest.mark.usefixtures("_small")
def test_results_are_the_best_epoch_and_the_mean_of_the_last_ten() -> None:
    """Of the curve in full, not as it is rounded for the record; of fewer epochs, the mean of all."""
    run = make(images(16), images(4, seed=1))(config())
    run.curves = {"test_curve": [0.9, 0.8, 0.123456789, *[0.5] * 9]}
    assert run.result == pytest.approx({"best_top1": 90.0, "last10_top1": 46.23456789}, rel=1e-12)
    run.curves = {"test_curve": [0.25, 0.75]}
    assert run.result == {"best_top1": 75.0, "last10_top1": 50.0}


@pytest.mark.usefixtures("_small")
def test_a_test_is_without_noise_and_leaves_the_network_as_it_is() -> None:
    """And the images are neither cropped nor mirrored."""
    run = make(images(16), images(40, seed=1))(config())
    run.advance()
    right = assert_tests_in_eval_mode(run)["test_curve"]
    seen = torch.cat([run.test_source.batch()[0] for _ in run.test_batches()])
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (cifar.MEAN, cifar.STD))
    torch.testing.assert_close(seen, (run.test_images.pixels - mean) / std)
    logits = run.network.eval()(seen)
    assert right == (logits.argmax(1) == run.test_images.labels).float().mean().item()


@pytest.mark.usefixtures("_small")
def test_an_update_is_that_of_sgd_with_momentum_and_weight_decay() -> None:
    """w ← w − rate · v with v ← momentum · v + gradient + decay · w: here the gradient is zero."""
    run = make(images(16), images(4, seed=1))(config(momentum=0.5, weight_decay=0.1, learning_rate=0.2))
    weight = run.network.get_parameter("head.weight")
    first = weight.detach().clone()
    for expected in (0.98 * first, 0.98 * first - 0.2 * (0.5 * 0.1 * first + 0.1 * 0.98 * first)):
        for parameter in run.network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        run.optimizer.step()
        torch.testing.assert_close(weight.detach(), expected)
