"""Rotary embeddings as far as moving a key needs them: the frequencies, the rotated dimensions, the pairing.

A rotary embedding turns pair i of a key at position p by the angle p * inv_freq[i]. Turning it further by delta *
inv_freq[i] gives the key at p + delta, whatever the key is. The frequencies must not depend on the sequence. Magnitude
factors (YaRN's mscale) are already in the cached key and must not be applied again, so this module has no place for
one.

Does not know where the frequencies come from (`engine/worker/rope_module.py`) nor how keys are stored (`layout.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Rope:
    """One static rotary embedding. Hashable, so that layers which share it share its angle table.

    Attributes:
        inv_freq: radians per position of each pair, `rot_dim / 2` values. Where the engine computes them in float32,
            these are exactly the engine's values: the engine's keys were turned by them, not by the ideal ones.
        rot_dim: dimensions `[0, rot_dim)` of a key turn, the others stay (partial rotary).
        is_neox: pairs are `(i, i + rot_dim / 2)`. Otherwise they are GPT-J's `(2i, 2i + 1)`.

    """

    inv_freq: tuple[float, ...]
    rot_dim: int
    is_neox: bool

    def __post_init__(self) -> None:
        if self.rot_dim <= 0 or self.rot_dim % 2 != 0:
            raise ValueError(f"rot_dim {self.rot_dim} must be positive and even")
        if len(self.inv_freq) != self.rot_dim // 2:
            raise ValueError(f"rot_dim {self.rot_dim} needs {self.rot_dim // 2} frequencies, got {len(self.inv_freq)}")
        if not np.isfinite(self.inv_freq).all():
            raise ValueError("inv_freq holds a value that is not finite")


def angles(rope: Rope, deltas: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cosine and sine of the turn by each delta, both `[len(deltas), rot_dim / 2]`, in float64.

    In float32 the product `delta * inv_freq` would be off by 0.004 radians at 131,072 positions. Kernels round these
    tables once, to float32.
    """
    turn = np.asarray(deltas, dtype=np.float64)[:, None] * np.asarray(rope.inv_freq, dtype=np.float64)[None, :]
    return np.cos(turn), np.sin(turn)
