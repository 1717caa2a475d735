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
        self._epochs, self._tests = len(run.losses), _lengths(run)

    def write(self, run: Run) -> None:
        """Write the scalars of an epoch, if the last step has ended one; scores only if it had a test."""
        if len(run.losses) == self._epochs:
            return
        before, self._epochs, self._tests = self._tests, len(run.losses), _lengths(run)
        strength = {"p": run.schedule.noises[0].p} if run.schedule is not None else {}
        newest = {name: values[-1] for name, values in run.curves.items() if len(values) > before.get(name, 0)}
        rate = run.config.rate_at(run.step - 1)
        for name, value in {"train_loss": run.losses[-1], **newest, "learning_rate": rate, **strength}.items():
            self._writer.add_scalar(name, value, run.step)

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()


def _lengths(run: Run) -> dict[str, int]:
    return {name: len(values) for name, values in run.curves.items()}
