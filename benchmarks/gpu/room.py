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
    """A part of a stage that is not measured, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class PairPlan:
    """What two engines of one type of KV measure: lengths of the fold, and pairs of a number of sessions and a length.

    `long` and `many` are the lengths and the pairs that do not fit.
    """

    room: EngineRoom
    contexts: tuple[int, ...]
    cases: tuple[tuple[int, int], ...]
    long: tuple[LeftOut, ...] = ()
    many: tuple[LeftOut, ...] = ()


def plan_room(device: Device, model: ServedModel, kv_type: str, other_gib: float) -> EngineRoom:
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


def plan_pair(
    contexts: Sequence[int], numbers: Sequence[int], session_contexts: Sequence[int], room: EngineRoom
) -> PairPlan:
    """What fits, and what does not, with its reason. All sessions of a number have room for a fold of each."""
    cases = [(number, context) for context in session_contexts for number in numbers]
    long = [context for context in contexts if fold_tokens(context) > room.pool_tokens]
    many = [(number, context) for number, context in cases if number * fold_tokens(context) > room.pool_tokens]
    return PairPlan(
        room,
        tuple(context for context in contexts if context not in long),
        tuple(case for case in cases if case not in many),
        tuple(LeftOut(f"{context:,} tokens", _why(fold_tokens(context), room)) for context in long),
        tuple(
            LeftOut(f"{number} sessions of {context:,} tokens", _why(number * fold_tokens(context), room))
            for number, context in many
        ),
    )


def _why(needed: int, room: EngineRoom) -> str:
    return f"this takes {needed:,} tokens of KV, and there are {room}"


def needed_window(longest: int) -> int:
    """Tokens of the longest prompt with its answer, in blocks of 128."""
    return -(-(longest + 4 * ScaleCell(longest).num_new + 64) // 128) * 128
