"""Isotonic regression of counts by pooling adjacent violators, many at a time, with exact sums.

scipy has it too, but importing ``scipy.optimize`` takes longer than evaluating ten maps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def rising_shares(hits: Ints, count: Ints) -> Floats:
    """Return the non-decreasing shares that are nearest to hits / count in squares weighted by count.

    Of neighbouring blocks whose shares fall, all have the same share in the solution, whatever else is pooled. So every
    run of falling shares becomes one block per round. Where a round pools little, the rest is done block by block.
    """
    starts = np.arange(len(hits))
    h, n = hits.astype(np.int64), count.astype(np.int64)
    while len(h) > 1:
        share = h / n
        rises = np.append(True, share[1:] >= share[:-1])
        if rises.all():
            break
        first = np.flatnonzero(rises)
        if len(h) - len(first) < len(h) >> 6:
            starts, h, n = _block_by_block(starts, h, n)
            break
        starts, h, n = starts[first], np.add.reduceat(h, first), np.add.reduceat(n, first)
    lengths = np.diff(np.append(starts, len(hits)))
    return np.asarray(np.repeat(h / n, lengths), dtype=np.float64)


def _block_by_block(starts: Ints, hits: Ints, count: Ints) -> tuple[Ints, Ints, Ints]:
    """Pool adjacent violators one at a time, in one pass from left to right."""
    blocks: list[tuple[int, int, int]] = []
    for start, h, n in zip(starts.tolist(), hits.tolist(), count.tolist(), strict=True):
        while blocks and blocks[-1][1] / blocks[-1][2] > h / n:
            start, last_h, last_n = blocks.pop()
            h, n = h + last_h, n + last_n
        blocks.append((start, h, n))
    merged = np.array(blocks, np.int64)
    return merged[:, 0], merged[:, 1], merged[:, 2]
