"""TensorBoard scalars of a run: its loss, scores, learning rate and strength of noise at the end of every epoch."""

from __future__ import annotations

from pathlib import Path

from .run import Run

__all__ = ["Scalars"]


class Scalars:
    """Writes the scalars of one run.

    Args:
        folder: the folder to write to; TensorBoard names the run after it.
        run: the run. If it was resumed, scalars of later steps than its own are dropped.
    """

    def __init__(self, folder: Path, run: Run) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "scalars for TensorBoard need tensorboard: pip install 'rotationout[tensorboard]'"
            ) from error
        self._writer = SummaryWriter(str(folder), purge_step=run.step + 1)  # the first step that is dropped
        self._epochs = len(run.losses)

    def write(self, run: Run) -> None:
        """Write the scalars of an epoch, if the last step has ended one."""
        if len(run.losses) == self._epochs:
            return
        self._epochs = len(run.losses)
        strength = {"p": run.schedule.noises[0].p} if run.schedule is not None else {}
        newest = {name: values[-1] for name, values in run.curves.items()}
        rate = run.config.rate_at(run.step - 1)
        for name, value in {"train_loss": run.losses[-1], **newest, "learning_rate": rate, **strength}.items():
            self._writer.add_scalar(name, value, run.step)

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()
