"""The copies of one step, from the scheduler to the workers: which KV goes where, and by how many positions it turns.

Pure data. It crosses process boundaries inside vLLM's `SchedulerOutput`, so it holds block ids and integers only,
never block objects. The worker (`engine/worker/kv_mover.py`) executes it before the forward pass of the same step.
"""

from __future__ import annotations

from dataclasses import dataclass

from acmserve.engine.vllm.hooks import HolePass


@dataclass(frozen=True, slots=True)
class KVCopy:
    """Copy the KV of one contiguous token range of one request, into that request's own blocks, in one group's layers.

        source sequence   ......[src_start ............ src_start+n)......     blocks src_block_ids
                                   |  K rotated by delta = dst_start - src_start, V as it is
        request           ...[dst_start ............ dst_start+n)...           blocks dst_block_ids

    `src_block_ids[0]` is the block that holds token `src_start` (offset `src_start % block_size` in it). Likewise for
    `dst`. Both lists cover the range exactly. Source and destination blocks are disjoint. Blocks are those of KV cache
    group `group`, and hold its number of tokens each.
    """

    request_id: str
    src_start: int
    dst_start: int
    num_tokens: int
    src_block_ids: tuple[int, ...]
    dst_block_ids: tuple[int, ...]
    group: int = 0

    @property
    def delta(self) -> int:
        """Positions by which the keys turn. 0 is a plain, bit-exact copy."""
        return self.dst_start - self.src_start


@dataclass(frozen=True, slots=True)
class StateMove:
    """Compose the states of one recurrent group where the tokens `[dst_start, +num_tokens)` of a request end.

    The state in block `there` is the request's at `dst_start`. Those in `before` and `after` are the source's, at
    `src_start` and behind its last moved token. `transitions` lead from one to the other, first to last, by number.
    `dst_block_id` gets the result: the step goes on from there. Without `before` it gets what is in `after`. Behind a
    prefix of the request's own, its state at `dst_start` is not asked for: `there` is None.
    """

    request_id: str
    group: int
    src_start: int
    dst_start: int
    num_tokens: int
    before: int | None
    after: int
    there: int | None
    dst_block_id: int
    transitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StateCopy:
    """Keep the state of one recurrent group in front of the step's tokens, which are at `position` of a request.

    It stands in block `src_block_id`, and the step may leave its own there. `dst_block_id` is nobody's yet.
    """

    request_id: str
    group: int
    position: int
    src_block_id: int
    dst_block_id: int


StepCopy = KVCopy | StateMove | StateCopy
"""What one group of one request gets in a step."""


@dataclass(frozen=True, slots=True)
class TransitionRecord:
    """Record the transition over this step's tokens of a request, under `number`, behind what is recorded under it.

    `block_ids` are (group, block of the state behind the tokens), of every recurrent group. `num_tokens` are all that
    the transition is over, with those of the step. Where `is_whole`, no step goes on with it.
    """

    number: int
    block_ids: tuple[tuple[int, int], ...]
    num_tokens: int
    is_whole: bool


@dataclass(frozen=True, slots=True)
class RecordedTransition:
    """What a worker recorded so far: a bound of its norm over all layers and heads, and the bytes that it takes."""

    norm: float
    num_bytes: int


@dataclass(frozen=True, slots=True)
class StepCopies:
    """All copies of one scheduler step, in no particular order (no two overlap).

    Once they are done, the workers forget the transitions in `dropped`, and record those of the step. The requests in
    `passes` compute between their copies.
    """

    copies: tuple[StepCopy, ...] = ()
    records: tuple[TransitionRecord, ...] = ()
    dropped: tuple[int, ...] = ()
    passes: tuple[HolePass, ...] = ()
