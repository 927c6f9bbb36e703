"""The jump of a model with recurrent layers: from one kept state of the source to another one, or back to its own.

    source     [ folded ..)[a ..............................)b          a state is kept at a and at b, in every group
    prompt         [ marker )[a' ............................)b'        the request's own state stands at a'
    full                     [ copied, keys turned ..........)
    recurrent                          S_b + P (S_a' - S_a)  |          P: transitions recorded over all of [a, b)
    short conv                                          S_b  |          its last inputs are of [a, b), whatever S_a was

A prefix that was served before ends at its own state, which is copied whole. Nothing is asked of where the jump begins:

    prompt     [ cached ..)[ computed )[ copied ..........)[ new ..)      a turn ended where `new` begins
    recurrent                                             S

Pure: asks a lookup for blocks and an index for transitions. What is not there ends the jump earlier, or there is none.
So the groups are moved together or not at all. What the composition is worth: `kernels/ops/recurrent.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from acmserve.engine.groups.facts import GroupFacts, KVGroups
from acmserve.engine.requests.session_request import ReusableRange
from acmserve.engine.scheduling.leaps.runs import (
    Block,
    BlockRun,
    FindPath,
    Jump,
    Lookup,
    SegmentRun,
    StateRead,
    TransitionPath,
)
from acmserve.plan.source import ServedSequence

FullRun = tuple[SegmentRun, list[BlockRun]]
"""A part of one segment that all groups of full attention have, with their blocks."""

MIN_RESTORED_TOKENS = 16
"""A shorter prefix behind vLLM's own hit is computed. The jump costs a step of one token in front of it."""
NOTHING_LEFT = TransitionPath((), 0.0)
"""Where no group composes its state, a suffix leaves nothing of what was in front of it."""


def states_before(source: ServedSequence, start: int, lookup: Lookup, groups: KVGroups) -> dict[int, Block] | None:
    """The states with which a jump begins at token `start` of the source: of the groups alone that compose theirs.

    None where no jump can begin, or where vLLM may keep states within blocks.
    """
    if not start or groups.recurrent[0].block_size != groups.hash_block_size or source.state_key(start) is None:
        return None
    return _states_at(source, start, lookup, groups.composed)


def plan_between_states(
    run: SegmentRun,
    reads: Sequence[BlockRun],
    before: Mapping[int, Block],
    lookup: Lookup,
    groups: KVGroups,
    find_path: FindPath,
) -> Jump | None:
    """The longest part of `run`, from its start, at whose ends all states are kept. `reads` are of full attention."""
    source, start = run.segment.source, run.src_start
    for end in _ends(source, start, start + run.end - run.start):
        after = _states_at(source, end, lookup, groups.recurrent)
        path = find_path(source, start, end) if after is not None and groups.composed else NOTHING_LEFT
        if after is not None and path is not None:
            dst_end = run.start + end - start
            cut = (read.cut(run.start, dst_end) for read in reads)
            states = (StateRead(group, before.get(group.index), after[group.index]) for group in groups.recurrent)
            return Jump(
                (SegmentRun(run.segment, run.start, dst_end),),
                tuple(read for read in cut if read is not None),
                tuple(states),
                path,
            )
    return None


def plan_to_kept_state(
    segment: ReusableRange, position: int, find_run: Callable[[], FullRun | None], lookup: Lookup, groups: KVGroups
) -> Jump | None:
    """The longest part of a kept prefix from `position` on behind which its own states are there.

    `find_run` finds what is cached of it in full attention. It is asked once a state was found.
    """
    kept = [state for state in segment.source.states if position < state.num_tokens <= segment.dst_end]
    found: FullRun | None = None
    for state in reversed(kept):
        after = [(group, lookup(state.key, group.index)) for group in groups.recurrent]
        if any(block is None for _, block in after):
            continue
        found = found or find_run()
        if found is None:
            return None
        run, reads = found
        if run.end >= state.num_tokens:
            cut = (read.cut(run.start, state.num_tokens) for read in reads)
            return Jump(
                (SegmentRun(segment, run.start, state.num_tokens),),
                tuple(read for read in cut if read is not None),
                tuple(StateRead(group, None, block) for group, block in after if block is not None),
            )
    return None


def _ends(source: ServedSequence, start: int, end: int) -> list[int]:
    """Where a state may be kept behind `start`, up to `end`, last to first: behind blocks, and where turns ended."""
    size = source.block_size
    places = set(range(end // size * size, start, -size))
    return sorted(
        places | {state.num_tokens for state in source.states if start < state.num_tokens <= end}, reverse=True
    )


def _states_at(
    source: ServedSequence, position: int, lookup: Lookup, groups: Sequence[GroupFacts]
) -> dict[int, Block] | None:
    """The block with the state behind `position` tokens of the source, by group. None where one is not kept."""
    found: dict[int, Block] = {}
    key = source.state_key(position)
    for group in groups:
        block = lookup(key, group.index) if key is not None else None
        if block is None:
            return None
        found[group.index] = block
    return found
