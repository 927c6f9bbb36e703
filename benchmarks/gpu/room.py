"""What of the suite fits into a card on which two engines lie side by side, and why the rest is left out. Pure.

    card    [ weights | other | KV ........ ][ weights | other | KV ........ ]  spare
                     ours                              stock

Both have as much KV. A context fits where ours can hold it, and beside it what a fold moves, which stands at new
positions. vLLM does not start where its longest prompt is longer than its pool, so lengths that do not fit are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from acmserve.bench.gpu.device import Device
from acmserve.bench.gpu.served_model import ServedModel
from acmserve.bench.scale.cells import REMOVED_EIGHTHS, ScaleCell

FRONT_SHARE = 0.125
"""Of a context, in front of the fold: whole blocks of every length, so that both engines find the same tokens."""
OTHER_GIB = 4.5
"""What an engine takes beside weights and KV: activations of 16,384 tokens, CUDA graphs, CUDA itself. A guess."""
CPU_POOL_BYTES = 1 << 26
_USED_SHARE = 0.98
_SPARE_TOKENS = 512
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class EngineRoom:
    """The KV of each of two engines: `pool_bytes`, which hold `pool_tokens`. No more than 0 where nothing is left."""

    pool_bytes: int
    pool_tokens: int

    def __str__(self) -> str:
        return f"{self.pool_bytes / _GIB:.1f} GiB of KV an engine, {self.pool_tokens:,} tokens"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part of a stage, or all of it, that is not measured, and why."""

    stage: str
    what: str
    why: str


def plan_room(device: Device, model: ServedModel, kv_type: str, other_gib: float = OTHER_GIB) -> EngineRoom:
    """Half of what two engines leave of the card's free memory. On a CPU a little, which is enough for its model."""
    pool_bytes = CPU_POOL_BYTES
    if device.free_bytes is not None:
        left = _USED_SHARE * device.free_bytes - 2 * (model.weight_bytes + other_gib * _GIB)
        pool_bytes = int(left / 2)
    return EngineRoom(pool_bytes, max(0, pool_bytes) // model.kv_bytes(kv_type))


def fold_tokens(context_tokens: int) -> int:
    """Tokens of KV that a context and a fold of it take: what is behind the fold stands twice."""
    cell = ScaleCell(context_tokens, FRONT_SHARE)
    behind = (1 - FRONT_SHARE) * context_tokens * (1 - REMOVED_EIGHTHS / 8)
    return round(context_tokens + behind) + 4 * cell.num_new + _SPARE_TOKENS


def fit_contexts(contexts: Sequence[int], room: EngineRoom, stage: str) -> tuple[list[int], list[LeftOut]]:
    """The lengths that fit, and the others with their reason."""
    fitting = [context for context in contexts if fold_tokens(context) <= room.pool_tokens]
    return fitting, [
        LeftOut(stage, f"{context:,} tokens", f"a fold takes {fold_tokens(context):,} tokens of KV; there are {room}")
        for context in contexts
        if context not in fitting
    ]


def fit_sessions(
    numbers: Sequence[int], contexts: Sequence[int], room: EngineRoom, stage: str
) -> tuple[list[tuple[int, int]], list[LeftOut]]:
    """Pairs of a number of sessions and their length, and those that a pool cannot hold, with their reason."""
    fitting, left_out = [], []
    for context in contexts:
        for number in numbers:
            needed = number * fold_tokens(context)
            if needed <= room.pool_tokens:
                fitting.append((number, context))
            else:
                why = f"they take {needed:,} tokens of KV; there are {room}"
                left_out.append(LeftOut(stage, f"{number} sessions of {context:,} tokens", why))
    return fitting, left_out


def needed_window(longest: int) -> int:
    """Tokens of the longest prompt with its answer, in blocks of 128."""
    return -(-(longest + 4 * ScaleCell(longest).num_new + 64) // 128) * 128
