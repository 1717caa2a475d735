"""A LightningModule with inserted noise, and a callback that ramps its strength, also in a run that is resumed.

python examples/lightning_digits.py   (needs: pip install -e '.[demo,models]')
"""

from typing import Any

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rotationout as ro


class Classifier(L.LightningModule):
    """A small network, written without noise."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """The loss of a batch."""
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


class ScheduleCallback(L.Callback):
    """Takes a strength schedule to the optimizer step that the trainer is at."""

    def __init__(self, schedule: ro.Schedule) -> None:
        self.schedule = schedule

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        """Batches whose gradients are accumulated belong to one step."""
        self.schedule.step(to=trainer.global_step)


def main(epochs: int = 10, **trainer: Any) -> float:
    """Train on handwritten digits, and return the accuracy on held-out ones."""
    L.seed_everything(0, verbose=False)
    pixels, labels = (torch.tensor(values) for values in load_digits(return_X_y=True))
    pixels = pixels.float() / 16
    model = Classifier()
    ro.insert(model, ro.RotationOut(0.3), before=nn.Linear, where=lambda name, module: name != "net.0")
    callback = ScheduleCallback(ro.Schedule.ramp(model, steps=100))
    loader = DataLoader(TensorDataset(pixels[:1200], labels[:1200]), batch_size=64, shuffle=True)
    L.Trainer(max_epochs=epochs, callbacks=[callback], logger=False, **trainer).fit(model, loader)
    return (model.eval().net(pixels[1200:]).argmax(1) == labels[1200:]).float().mean().item()


if __name__ == "__main__":
    print(f"accuracy {main(enable_checkpointing=False):.3f}")
