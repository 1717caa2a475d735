"""The sizes of GPU programs, and which of their ideas are in use.

Most were found by measurement on an H200, limits of registers and when long rows are walked by what a compiler makes of
them for it. ``python -m benchmarks.centred --without`` measures what single ones are worth.
"""

from __future__ import annotations

import torch
import triton

from .lanes import swap_words

OVERLAP = True
"""Whether kernels start while those before them end, where a GPU can; those that turn up to FEW elements load them
meanwhile, for which they need more registers."""
BACKWARDS = True
"""Whether what a sum has just read is turned from its end, which caches still hold."""

PAIR_POSITIONS = 16, 192
"""Maps at least this large are turned pair by pair, smaller ones element by element: of an even and an odd size."""
PAIR_TILE, PAIR_WARPS, PAIR_TILES = (1024, 2048), (2, 4), 2
"""Elements of a tile and warps, for large maps and those of up to 64 positions, and tiles of a program."""
ROW_FEATURES = 8192, 8192
"""The most features that meet in shared memory, of 16 and of 32 bits; half as many where 8 do not lie together, as a
thread needs more registers to load them one by one."""
ROW_TILE, ROW_WARPS, ROW_SHARED = (512, 1024, 2048), (2, 2, 4), True
"""Words that are exchanged at once and warps, for up to 64 features, up to 256 and more: rows that are longer than a
tile have as many more of both. Whether in shared memory."""
ROW_REGISTERS = 64
"""The most registers of a thread if a program has more than 8 warps, so that two run at once."""
ROW_WALK, ROW_WALK_FEATURES, ROW_WALK_PROGRAMS = 8, 4096, 1056
"""Rows of more than 1024 features, up to so many, that a program turns about a mean one after the other, with twice the
warps: what it has to know of features is read once, and the next rows while these are turned. One tile only where
programs would be fewer: four times what run at once."""
GATHER_TILE, GATHER_WARPS = 1024, (1, 2)
"""Elements of a program, and its warps on maps and with the features last."""
LANES_TILE, LANES_WARPS = (1024, 512, 4096), (1, 1, 4)
"""Elements of a program and its warps, of which there are twice as many for features of 32 bits: for up to 1024
features, if a power of two or not; and for more,"""
LANES_BLOCKS = 2
"""pairs of groups that a thread turns of the same row, so that what depends on the row is worked out once for them,"""
LANES_REGISTERS = 64, 80, 0
"""and the most registers of a thread about a mean, 0 if there is no limit."""
LANES_LATE = True
"""Whether programs have asked for all their features of 16 bits before they load a mean or a shift."""
LANES_WORDS, LANES_PARTS = True, True
"""Whether features of 16 bits are turned two to a word, and those of 32 bits in parts of 16 bytes."""
LANES_ASM = isinstance(swap_words, triton.JITFunction) and torch.version.hip is None
"""Whether words are moved and rounded by instructions of NVIDIA's, on a GPU that has them; the interpreter has none."""
SUM_TILE, SUM_WARPS, SUM_REGISTERS, SUM_THREAD = (8192, 4096), 8, 64, 128
"""Elements of a tile of a sum, of 16 and of 32 bits, and warps, its registers, and the most elements that a thread adds
up at once,"""
SUM_POSITIONS, SUM_FEATURES = 128, 256
"""of which so many lie side by side at most: on maps, whose angles are then read in the order of the features, and with
the features last."""
SUM_PARTS = 2112, 528
"""Programs a sum is spread over, if there is enough to add up: more than run at once on maps, as many with the features
last."""
LANES_SUM_TILE, LANES_SUM_WARPS, LANES_SUM_REGISTERS = 4096, 4, (128, 80)
"""The same for a sum of structured turns, registers for features of 32 bits and for words of two,"""
LANES_SUM_PROGRAMS = 528, 792
"""the programs that run at once then,"""
LANES_SUM_PARTS = 4
"""and groups of lanes, or parts of 16 bytes of them, that a thread adds up of a row: 4 at most."""
SIGNS_BLOCK = 1024
"""Words of random bits that a program makes."""
ONCE = 2**14
"""The most elements of a channel that a program holds, and of its partner."""
SMALL = 2**23
"""Features of maps with fewer elements are added up in tiles of SMALL_TILE, and left in up to FEW_PARTS parts for the
program that turns them to add up: a launch would take longer."""
SMALL_TILE, SMALL_REGISTERS, FEW_PARTS = 1024, 80, 16
SMALL_ROWS, FEW_TILE = 2**20, 32768
"""The same of so many elements of 16 bits with the features last, where every program that turns them adds up all the
parts: tiles are large where 16 elements lie together, since few programs have to load everything."""
FEW, FEW_REGISTERS = 2**20, (168, 255)
"""Programs for so few elements run all at once, whatever registers they have: enough to hold all that they load, and
more for turns of rows. Left alone, the compiler makes do with fewer and waits for a few numbers at a time."""
FOLLOW = True
"""Whether the program that adds up the parts of a batch's mean also moves the running mean towards it."""
