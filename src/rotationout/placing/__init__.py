"""Noise in models that are there already: place it, put it in Dropout's stead, schedule it, sample with it.

Data parallel training: insert before wrapping the model in DistributedDataParallel, but after
``SyncBatchNorm.convert_sync_batchnorm``, which rebuilds modules and loses their hooks; and build it from the same seed
on all ranks. Then call ``torch.manual_seed(seed + rank)``: every rank draws noise of its own, as it has its own data.
With one seed for all, ranks would draw the same noise for different examples: unbiased, but less of it averages out.
Means are a rank's own; ``sync=True`` of a centred noise takes them over all ranks, and gradients are then those of one
process with the whole batch and the same draw. A `Schedule` runs on every rank alike.
"""

from ._insert import insert, remove
from ._presets import insert_blocks, insert_in_stages
from ._report import Change, Left, Report
from ._sampling import Samples, predict_samples, sampling
from ._schedule import Schedule
from ._swap import swap

__all__ = [
    "Change",
    "Left",
    "Report",
    "Samples",
    "Schedule",
    "insert",
    "insert_blocks",
    "insert_in_stages",
    "predict_samples",
    "remove",
    "sampling",
    "swap",
]
