"""A jump: adjacent source ranges, whose copies carry the computed position of one request forward in one step.

    prompt   ... computed )[ run 0 ........)[ run 1 ....) computed again ...
                           start            |           end
             source 0  [..block..|..block..|..block..]  |      a run is one segment, or as much of it as is cached
             source 1                  [..block..|..block..]

A jump is the copying counterpart of a prefill chunk. Pure: asks a lookup for blocks, takes no references, changes
nothing. A run ends at the first block that is no longer cached. What lies behind it is asked for again when the
scheduler gets there.

Every KV cache group is copied, or none. A window group needs only what a query at `end` still reads:

    full      [ read ..................................)      ends where a block of the source is gone
    window                   [ not read )[ read .......)      ends where all of this is cached: the jump is as short
                                         needed_from(end)     as the shortest group makes it

A recurrent group needs a state at both ends, or behind a kept prefix (`leaps/states.py`).

Decision: a jump has at most `MAX_BLOCKS` blocks of one group. The scheduler takes microseconds for each, and everybody
waits for it. A longer range takes several steps, each of which computes one token. Except where the windows of a source
are cached at its far end only. Such a jump goes there at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from acmserve.engine.groups.facts import GroupFacts, KVGroups
from acmserve.engine.requests.receipt import KVOrigin
from acmserve.engine.requests.session_request import ReusableRange, SessionRequest
from acmserve.engine.scheduling.leaps.runs import Block, BlockRun, FindPath, Jump, Lookup, SegmentRun, TransitionPath
from acmserve.engine.scheduling.leaps.states import (
    FullRun,
    plan_between_states,
    plan_to_kept_state,
    states_before,
)
from acmserve.engine.worker.copies import KVCopy, StateMove, StepCopy
from acmserve.errors import IntegrityError
from acmserve.plan.source import ServedSequence

MAX_BLOCKS = 2048
"""Source blocks of one step: 32,768 tokens in blocks of 16. The scheduler's thread takes 10 to 20 ms for them."""
_NO_LIMIT = 2**31


def no_path(source: ServedSequence, start: int, end: int) -> TransitionPath | None:
    """No transition is recorded: of a model without recurrent groups none has to be."""
    return None


def plan_jump(
    request: SessionRequest, position: int, lookup: Lookup, groups: KVGroups, find_path: FindPath = no_path
) -> Jump | None:
    """The longest jump from `position` whose source blocks are all cached, in every group. None when there is none.

    It ends behind `MAX_BLOCKS` blocks, unless the windows allow no end but a later one.
    """
    if groups.recurrent:
        return _plan_with_states(request, position, lookup, groups, find_path)
    for limit in (MAX_BLOCKS, _NO_LIMIT):
        full = full_runs(request, position, lookup, groups, limit)
        if not full:
            return None
        runs = [run for run, _ in full]
        end = _end_for_windows(runs, lookup, groups) if groups.windows else runs[-1].end
        if end > position:
            return _jump_to(full, end, lookup, groups)
        if not groups.windows:
            return None
    return None


def _plan_with_states(
    request: SessionRequest, position: int, lookup: Lookup, groups: KVGroups, find_path: FindPath
) -> Jump | None:
    """The states come first: few are kept, and the blocks of attention are many."""
    segment = request.segment_at(position)
    if segment is None:
        return None
    if segment.origin is KVOrigin.KEPT:
        find_run = partial(_first_run, request, position, lookup, groups)
        return plan_to_kept_state(segment, position, find_run, lookup, groups)
    before = states_before(segment.source, segment.src_at(position), lookup, groups)
    found = _first_run(request, position, lookup, groups) if before is not None else None
    return plan_between_states(*found, before, lookup, groups, find_path) if found and before is not None else None


def _first_run(request: SessionRequest, position: int, lookup: Lookup, groups: KVGroups) -> FullRun | None:
    found = full_runs(request, position, lookup, groups, MAX_BLOCKS)
    return found[0] if found else None


def plan_trimmed(jump: Jump, position: int) -> Jump | None:
    """`jump` without what lies before `position`. None when nothing remains."""
    runs = [SegmentRun(r.segment, max(r.start, position), r.end) for r in jump.runs if r.end > position]
    reads = (read.cut(position, read.end) for read in jump.reads)
    return Jump(tuple(runs), tuple(read for read in reads if read is not None), begin=position) if runs else None


def is_available(
    request: SessionRequest, position: int, lookup: Lookup, groups: KVGroups, find_path: FindPath = no_path
) -> bool:
    """Whether a jump can begin at prompt token `position`, which lies in a segment."""
    if groups.windows or groups.recurrent:
        return plan_jump(request, position, lookup, groups, find_path) is not None
    segment = request.segment_at(position)
    assert segment is not None
    return has_blocks_at(segment, position, lookup, groups.full)


def has_blocks_at(segment: ReusableRange, position: int, lookup: Lookup, groups: Sequence[GroupFacts]) -> bool:
    """Whether the source blocks of `groups` are cached that hold the KV for prompt token `position`."""
    return all(_block(segment, segment.src_at(position) // g.block_size, lookup, g) is not None for g in groups)


def next_available(
    request: SessionRequest,
    segment: ReusableRange,
    position: int,
    lookup: Lookup,
    groups: KVGroups,
    find_path: FindPath = no_path,
) -> int:
    """First token of `segment` from `position` on, at a source block boundary, where a jump can begin. Else its end.

    full      [ cached ..............)  gone  [ cached ............)
    window       gone         [ tail )           gone      [ tail  )
              ^ a jump over the stretch ends with its tail, so one begins wherever the stretch does
    """
    size = segment.source.block_size
    if groups.recurrent and segment.origin is KVOrigin.KEPT:
        # Nothing is asked of where such a jump begins, so a later start has the same ends.
        return position if is_available(request, position, lookup, groups, find_path) else segment.dst_end
    while position < segment.dst_end:
        following = _next_start(segment, position, size)
        if not has_blocks_at(segment, position, lookup, groups.full):
            position = following
            continue
        if groups.recurrent and not is_available(request, position, lookup, groups, find_path):
            if not groups.composed and not segment.src_at(position) % size:
                # Nothing is asked of the start, so each one in this stretch lacks the same ends.
                following = max(following, full_runs(request, position, lookup, groups, MAX_BLOCKS)[0][0].end)
            position = following
            continue
        if not groups.windows:
            return position
        runs = [run for run, _ in full_runs(request, position, lookup, groups, _NO_LIMIT)]
        if _end_for_windows(runs, lookup, groups) > position:
            return position
        # Each start in this stretch reaches the same ends. Only one in the midst of a tail can still do.
        while following < runs[0].end:
            if has_blocks_at(segment, following, lookup, groups.windows):
                return following
            following = _next_start(segment, following, size)
        position = max(following, runs[0].end)
    return segment.dst_end


def plan_copies(jump: Jump, request_id: str, dst_block_ids: Sequence[Sequence[int]]) -> list[StepCopy]:
    """The copies that carry `jump` out. `dst_block_ids` are the request's whole block tables, by group.

    vLLM has put the block of a step's state behind all others. The step begins with what is in there.
    """
    copies: list[StepCopy] = []
    for read in jump.reads:
        size = read.group.block_size
        first, last = read.start // size, (read.end - 1) // size
        copies.append(
            KVCopy(
                request_id=request_id,
                src_start=read.src_start,
                dst_start=read.start,
                num_tokens=read.end - read.start,
                src_block_ids=tuple(block.block_id for block in read.blocks),
                dst_block_ids=tuple(dst_block_ids[read.group.index][first : last + 1]),
                group=read.group.index,
            )
        )
    copies += (
        StateMove(
            request_id=request_id,
            group=state.group.index,
            src_start=jump.runs[0].src_start,
            dst_start=jump.start,
            num_tokens=jump.end - jump.start,
            before=None if state.before is None else state.before.block_id,
            after=state.after.block_id,
            there=None if state.there is None else state.there.block_id,
            dst_block_id=dst_block_ids[state.group.index][-1],
            transitions=jump.path.numbers if jump.path is not None else (),
        )
        for state in jump.states
    )
    return copies


def _next_start(segment: ReusableRange, position: int, size: int) -> int:
    """The first token of `segment` behind `position` where a jump may begin. May lie behind its end.

    Its source token begins a block, or has a state in front that was kept where a turn ended.
    """
    following = (segment.src_at(position) // size + 1) * size
    kept = segment.source.next_state(segment.src_at(position) + 1)
    following = following if kept is None else min(following, kept.num_tokens)
    return segment.dst_start + following - segment.src_start


def _block(segment: ReusableRange, index: int, lookup: Lookup, group: GroupFacts) -> Block | None:
    key = segment.source.block_key(index, group.block_size)
    return lookup(key, group.index) if key is not None else None


def full_runs(
    request: SessionRequest, position: int, lookup: Lookup, groups: KVGroups, max_blocks: int
) -> list[tuple[SegmentRun, list[BlockRun]]]:
    """The runs from `position` whose blocks all groups of full attention have, each with those blocks.

    At most `max_blocks` of them in a group.
    """
    found: list[tuple[SegmentRun, list[BlockRun]]] = []
    while max_blocks > 0 and (segment := request.segment_at(position)) is not None:
        end = _limit(segment, position, groups.leading.block_size, max_blocks)
        reads = []
        for group in groups.full:
            read = _read(segment, position, end, lookup, group)
            if read is None:
                return found
            reads.append(read)
            end = read.end
        cut = (read.cut(position, end) for read in reads)
        found.append((SegmentRun(segment, position, end), [read for read in cut if read is not None]))
        max_blocks -= -(-segment.src_at(end) // groups.leading.block_size) - (
            segment.src_at(position) // groups.leading.block_size
        )
        position = end
        if position < segment.dst_end:
            break
    return found


def _limit(segment: ReusableRange, position: int, size: int, max_blocks: int) -> int:
    """Where a run from `position` on ends for its length."""
    src_end = (segment.src_at(position) // size + max_blocks) * size
    return min(segment.dst_end, segment.dst_start + src_end - segment.src_start)


def _read(segment: ReusableRange, start: int, end: int, lookup: Lookup, group: GroupFacts) -> BlockRun | None:
    """As much of `[start, end)` as is cached in `group` from `start` on. None where the first block is not."""
    size, number = group.block_size, group.index
    first = segment.src_at(start) // size
    blocks: list[Block] = []
    for key in segment.source.block_keys(first, (segment.src_at(end) - 1) // size + 1, size):
        block = lookup(key, number)
        if block is None:
            break
        blocks.append(block)
    end = min(end, segment.dst_start + (first + len(blocks)) * size - segment.src_start)
    return BlockRun(segment, start, end, tuple(blocks), group) if blocks else None


def _end_for_windows(runs: Sequence[SegmentRun], lookup: Lookup, groups: KVGroups) -> int:
    """The last end of a jump over `runs` at which every window group has what is read there. Else its start."""
    end, before = runs[-1].end, -1
    while end != before and end > runs[0].start:
        before = end
        for group in groups.windows:
            end = _end_for_window(runs, end, lookup, group)
    return end


def _end_for_window(runs: Sequence[SegmentRun], end: int, lookup: Lookup, group: GroupFacts) -> int:
    """The same for one group, from `end` down. Each missing block puts the end in front of itself."""
    size = group.block_size
    for run in reversed(runs):
        if run.start >= end:
            continue
        segment = run.segment
        index = (segment.src_at(min(run.end, end)) - 1) // size
        while index >= segment.src_at(max(run.start, group.needed_from(end))) // size:
            if _block(segment, index, lookup, group) is None:
                end = max(run.start, segment.dst_start + index * size - segment.src_start)
                if end == run.start:
                    break
            index -= 1
        if group.needed_from(end) >= run.start:
            break
    return end


def _jump_to(full: Sequence[tuple[SegmentRun, list[BlockRun]]], end: int, lookup: Lookup, groups: KVGroups) -> Jump:
    """The jump over `full` that ends at `end`, with the blocks of every group."""
    runs = [SegmentRun(run.segment, run.start, min(run.end, end)) for run, _ in full if run.start < end]
    cut = [read.cut(read.start, end) for _, reads in full for read in reads]
    for group in groups.windows:
        start = group.needed_from(end)
        cut += [_read(run.segment, max(run.start, start), run.end, lookup, group) for run in runs if run.end > start]
    jump = Jump(tuple(runs), tuple(read for read in cut if read is not None))
    num_wanted = sum(end - jump.copied_from(group) for group in groups.groups)
    if sum(read.end - read.start for read in jump.reads) != num_wanted:
        raise IntegrityError(f"jump: {jump.start} to {end} does not read all that {len(groups.groups)} groups need")
    return jump
