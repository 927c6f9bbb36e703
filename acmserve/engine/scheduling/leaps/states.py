"""The jump of a model with recurrent layers: from one kept state of the source to another one.

    source     [ folded ..)[a ..............................)b          a state is kept at a and at b, in every group
    prompt         [ marker )[a' ............................)b'        the request's own state stands at a'
    full                     [ copied, keys turned ..........)
    recurrent                          S_b + P (S_a' - S_a)  |          P: transitions recorded over all of [a, b)
    short conv                                          S_b  |          its last inputs are of [a, b), whatever S_a was

Pure: asks a lookup for blocks and an index for transitions. What is not there ends the jump earlier, or there is none.
So the groups are moved together or not at all. What the composition is worth: `kernels/recurrent.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from acmserve.engine.groups.facts import GroupFacts, KVGroups
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

NOTHING_LEFT = TransitionPath((), 0.0)
"""Where no group composes its state, a suffix leaves nothing of what was in front of it."""


def states_before(source: ServedSequence, start: int, lookup: Lookup, groups: KVGroups) -> dict[int, Block] | None:
    """The states with which a jump begins at token `start` of the source: of the groups alone that compose theirs.

    None where no jump can begin, or where vLLM may keep states within blocks.
    """
    size = groups.recurrent[0].block_size
    if start % size or not start or size != groups.hash_block_size:
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
    size = groups.recurrent[0].block_size
    end = (start + run.end - run.start) // size * size
    while end > start:
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
        end -= size
    return None


def _states_at(
    source: ServedSequence, position: int, lookup: Lookup, groups: Sequence[GroupFacts]
) -> dict[int, Block] | None:
    """The block with the state behind `position` tokens of the source, by group. None where one is not kept."""
    found: dict[int, Block] = {}
    for group in groups:
        key = source.block_key(position // group.block_size - 1, group.block_size)
        block = lookup(key, group.index) if key is not None else None
        if block is None:
            return None
        found[group.index] = block
    return found
