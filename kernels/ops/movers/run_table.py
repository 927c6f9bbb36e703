"""The table of runs that one launch of the Triton kernel reads: int64, made of blocks, not of tokens.

    | runs | tiles | first tokens | block ids of run 0, of run 1, ... |

A tile is what one program moves. It does not know layers, or what a group is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from acmserve.kernels.runs import MoveRun

TILE_TOKENS = 16


def run_table(runs: Sequence[tuple[int, MoveRun]]) -> tuple[NDArray[np.int64], int]:
    """What a launch knows of the runs, each with the place of its group, and its number of tiles.

    run      7 numbers a run     where its source block ids begin in the table, offset in the first one,
                                 the same for its destination, number of tokens, delta, place of its group
    tile     one number a tile   the run that it belongs to
    first    one number a tile   its first token, counted in the run
    ids      source and destination block ids of each run
    """
    num_tiles = np.array([-(-run.num_tokens // TILE_TOKENS) for _, run in runs], dtype=np.int64)
    total = int(num_tiles.sum())
    tiles = np.repeat(np.arange(len(runs), dtype=np.int64), num_tiles)
    first = TILE_TOKENS * (np.arange(total, dtype=np.int64) - np.repeat(num_tiles.cumsum() - num_tiles, num_tiles))
    rows, ids = [], []
    end = 7 * len(runs) + 2 * total
    for place, run in runs:
        src_at, dst_at = end, end + len(run.src_block_ids)
        end = dst_at + len(run.dst_block_ids)
        rows.append([src_at, run.src_offset, dst_at, run.dst_offset, run.num_tokens, run.delta, place])
        ids += [np.asarray(run.src_block_ids, dtype=np.int64), np.asarray(run.dst_block_ids, dtype=np.int64)]
    return np.concatenate([np.array(rows, dtype=np.int64).reshape(-1), tiles, first, *ids]), total
