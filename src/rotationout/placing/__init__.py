"""Noise in existing models: insert it, put it in the place of Dropout, schedule it, sample with it.

Data parallel training: build the model from the same seed on all ranks. Insert noise after
``SyncBatchNorm.convert_sync_batchnorm``, which rebuilds modules and loses their hooks, but before wrapping the model in
DistributedDataParallel. Then call ``torch.manual_seed(seed + rank)``, so that every rank draws noise of its own. With
one seed for all, ranks would draw the same noise for different examples: unbiased, but less of it averages out. Each
rank takes its own means; ``sync=True`` of a centred noise takes them over all ranks, and gradients are then those of
one process with the whole batch and the same draw. Step a `Schedule` on every rank alike.
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
