"""Sizes of the GPU programs (tiles, warps, registers), and switches for single optimisations.

Most were found by measurement on an H200; the limits of registers, and when long rows are walked, from what the
compiler makes of a program for it. ``python -m benchmarks.centred --without`` measures what single ones are worth.
"""

from __future__ import annotations

import torch
import triton

from .lanes import swap_words

OVERLAP = True
"""Whether a kernel starts before the previous one has ended, where a GPU can (see `overlap`). Kernels that turn up to
FEW elements load them meanwhile, for which they need more registers."""
BACKWARDS = True
"""Whether features that a sum has just read are turned from the last to the first, as caches still hold the last."""

PAIR_POSITIONS = 16, 192
"""Maps of at least so many positions are turned pair by pair, smaller ones element by element; for even and odd
sizes."""
PAIR_TILE, PAIR_WARPS, PAIR_TILES = (1024, 2048), (2, 4), 2
"""Elements of a tile, and warps, each for large maps and for those of up to 64 positions; tiles of a program."""
ROW_FEATURES = 8192, 8192
"""The most features that are exchanged in shared memory, of 16 and of 32 bits. Half as many if their number is no
multiple of 8, as a thread needs more registers to load them one by one."""
ROW_TILE, ROW_WARPS = (512, 1024, 2048), (2, 2, 4)
"""Words that are exchanged at once, and warps, each for up to 64 features, for up to 256 and for more; rows longer than
a tile have proportionally more of both."""
ROW_REGISTERS = 64
"""The most registers of a thread if a program has more than 8 warps, so that two programs run at once."""
ROW_WALK, ROW_WALK_FEATURES, ROW_WALK_PROGRAMS = 8, 4096, 1056
"""Rows that a program turns about a mean one after the other, with twice the warps, if they have more than 1024
features and at most ROW_WALK_FEATURES: it reads what belongs to the features once, and the next rows while these are
turned. It takes a single tile if there would be fewer than ROW_WALK_PROGRAMS programs, four times as many as run at
once."""
GATHER_TILE, GATHER_WARPS = 1024, (1, 2)
"""Elements of a program, and its warps on maps and with the features last in memory."""
LANES_TILE, LANES_WARPS = (1024, 512, 4096), (1, 1, 4)
"""Elements of a program, and its warps (twice as many for features of 32 bits), each for up to 1024 features if their
number is a power of two, if it is not, and for more than 1024."""
LANES_BLOCKS = 2
"""Pairs of groups that a thread turns in one row, so that it computes what depends on the row once for them."""
LANES_REGISTERS = 64, 80, 0
"""The most registers of a thread that turns about a mean, 0 for no limit; for the three sizes of LANES_TILE."""
LANES_LATE = True
"""Whether programs request all their features of 16 bits before they load a mean or a shift."""
LANES_WORDS, LANES_PARTS = True, True
"""Whether features of 16 bits are turned two to a word, and those of 32 bits in parts of 16 bytes."""
LANES_ASM = isinstance(swap_words, triton.JITFunction) and torch.version.hip is None
"""Whether NVIDIA's instructions move and round words, on a GPU that has them; Triton's interpreter has none."""
SUM_TILE, SUM_WARPS, SUM_REGISTERS, SUM_THREAD = (8192, 4096), 8, 64, 128
"""Elements of a tile of a sum, of 16 and of 32 bits; its warps; its registers; and the most elements that a thread adds
up at once."""
SUM_POSITIONS, SUM_FEATURES = 128, 256
"""The most elements side by side in a tile of a sum: positions on maps, whose angles are then read in the order of the
features, and features where these are last in memory."""
SUM_LEAST_FEATURES = 64
"""Features side by side in a tile of a weighted sum of 16 bits, where they are last: at least so many, if that makes at
most a quarter more of them. Tiles of 32 features have so many rows that a thread takes a single one."""
SUM_PARTS, MEDIUM_ROWS = (2112, 528), 2**25
"""Programs that share a sum, if there is enough to add up: on maps more than run at once, with the features last as
many as run at once; half of them for up to MEDIUM_ROWS elements of 16 bits."""
LANES_SUM_TILE, LANES_SUM_WARPS, LANES_SUM_REGISTERS = 4096, 4, (128, 80)
"""Elements of a tile, warps and registers of a sum of structured turns; registers for 32 bits and for words of two."""
LANES_SUM_PROGRAMS = 528, 792
"""The programs that run at once in such a sum, likewise."""
LANES_SUM_PARTS = 4
"""Groups of lanes, or parts of 16 bytes of them, that a thread adds up in one row of such a sum: 4 at most."""
SIGNS_BLOCK = 1024
"""Words of random sign bits that a program makes."""
ONCE = 2**14
"""The most elements of a channel that a program can hold, beside as many of its partner, to turn maps in one launch."""
SMALL = 2**23
"""Maps with fewer elements are added up in tiles of SMALL_TILE, to at most FEW_PARTS parts. The program that turns them
adds up the parts, as another launch would take longer."""
SMALL_TILE, SMALL_REGISTERS, FEW_PARTS = 1024, 80, 16
SMALL_ROWS, FEW_TILE = 2**20, 32768
"""The same for up to so many elements of 16 bits with the features last in memory, where every program that turns them
adds up all the parts. Tiles are large where 16 elements lie together, since few programs have to load everything."""
FEW, FEW_REGISTERS = 2**20, (168, 255)
"""For up to so many elements all programs run at once, however many registers they have: enough to hold all that they
load, and more to turn rows. By default the compiler takes fewer registers, and waits for a few numbers at a time."""
PLANE_LANES = 1024
"""Elements of gradients that a warp has if they go two to a word, else half as many. A program of short vectors has one
warp, or two. This size and the next ones have not been measured yet."""
PLANE_LANES_FEATURES = 8192
"""The most features of vectors that such programs hold; gradients of longer ones take two launches."""
PLANE_TILE, PLANE_WARPS = 2048, 4
"""Elements of a tile of gradients where what was turned is read, and warps."""
PLANE_POSITIONS, PLANE_PROGRAMS = (64, 16), 528
"""Positions side by side in such a tile of maps: the most, and the least if there would be fewer programs than so many.
"""
PLANE_FEATURES = 8192
"""The most features that such a tile holds whole, with more warps; rows of more are read twice."""
FOLLOW = True
"""Whether the program that adds up the parts of a batch mean also updates the running mean."""
