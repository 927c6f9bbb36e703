"""What an edit took out of the sight of the KV that it moves.

    source   [P .......][F1 .....][S1 ......][F2 ...][S2 .......]
    prompt   [P .......][m][S1 ......][S2 .......]
             removed: F1 and F2. In front of S1 stood F1, in front of S2 both: their KV still carries it.

A source may hold text that its own moves do not cover and that stands in the prompt nevertheless. That text is kept, or
moved, out of another source, or it was too short to be moved. What lies between the moves of a source counts as
removed, unless it stands in the prompt, in front of the text that saw it. Text that was moved to another place of the
prompt is not removed.

Knows token ids. Nothing of lineage, blocks or what becomes of the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from acmserve.plan.match import common_prefix, find_matches
from acmserve.plan.pieces import Move, Removed

if TYPE_CHECKING:
    from acmserve.plan.source import ServedSequence, Tokens

MIN_SAME_TOKENS = 32
"""Text of the source that the prompt repeats in fewer tokens than this counts as removed: chance repeats phrases."""

_BREAK = np.array([-1], dtype=np.int32)


@dataclass(frozen=True, slots=True)
class _Gap:
    """Source tokens `[start, end)` that no move covers. The text that saw them begins at prompt token `limit`."""

    source: int
    start: int
    end: int
    limit: int


def find_removed(prompt: Tokens, sources: Sequence[ServedSequence], moves: Sequence[Move]) -> tuple[Removed, ...]:
    """What stood in front of the moves in their sources and is not in front of them in `prompt` (int32 [n]).

    Sorted by source and position, disjoint.
    """
    gaps = [
        gap
        for index in sorted({move.source for move in moves})
        for gap in _gaps(prompt, index, sources[index].tokens, moves)
    ]
    if not gaps:
        return ()
    text = np.concatenate([part for gap in gaps for part in (sources[gap.source].tokens[gap.start : gap.end], _BREAK)])
    matches = find_matches(text, [prompt[: max(gap.limit for gap in gaps)]], 0, len(text), MIN_SAME_TOKENS)
    there = [(m.dst_start, m.dst_start + m.num_tokens, m.src_start + m.num_tokens) for m in matches]
    next_there = 0
    removed: list[Removed] = []
    offset = 0
    for gap in gaps:
        position, end = offset, offset + gap.end - gap.start
        while next_there < len(there) and there[next_there][0] < end:
            first, behind, ends_at = there[next_there]
            next_there += 1
            if ends_at <= gap.limit:
                removed += _removed(gap, position - offset, first - offset)
                position = behind
        removed += _removed(gap, position - offset, end - offset)
        offset = end + 1
    return tuple(removed)


def _gaps(prompt: Tokens, index: int, tokens: Tokens, moves: Sequence[Move]) -> Iterator[_Gap]:
    """What the moves of one source leave out of it, up to the last of them.

    Less what stands next to them in the prompt as it does in the source, however short: repair has it computed there.
    """
    start = place = common_prefix(prompt, tokens)
    for move in sorted((m for m in moves if m.source == index), key=lambda m: m.src_start):
        if move.src_start > start:
            start += common_prefix(prompt[place : move.dst_start], tokens[start : move.src_start])
            end = move.src_start - _common_suffix(prompt[: move.dst_start], tokens[start : move.src_start])
            if end > start:
                yield _Gap(index, start, end, move.dst_start)
        if move.src_start + move.num_tokens > start:
            start, place = move.src_start + move.num_tokens, move.dst_end


def _common_suffix(prompt: Tokens, tokens: Tokens) -> int:
    """Number of trailing tokens that the two int32 arrays share."""
    length = min(len(prompt), len(tokens))
    if not length:
        return 0
    first, second = prompt[-length:][::-1], tokens[-length:][::-1]
    return common_prefix(np.ascontiguousarray(first), np.ascontiguousarray(second))


def _removed(gap: _Gap, start: int, end: int) -> Iterator[Removed]:
    if end > start:
        yield Removed(gap.source, gap.start + start, gap.start + end)
