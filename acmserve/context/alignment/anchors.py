"""Pairs the equal items of two sequences: first those that stand alone, then what lies between them.

    old    S  a  b  b  c  F  d            anchors: S a c d, each once on either side, in the same order
    new    S' a  b  b  x  c  d  F         then b b between a and c, and at the end F, which has moved

Patience diff: the items that are unique on both sides are put into their longest common order. Between two of them the
same begins anew, so that items may be unique there. Where none is, equal neighbours are taken from both ends, and the
rest greedily. What is unique on both sides and left over has moved.

Decision: the work is bounded by a number of levels, so that any input costs a few passes over it. Tens of thousands of
equal items cost no more than others. Greedy pairs may then be fewer than there could be.

It knows no messages: items are compared and hashed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence

_MAX_LEVELS = 12
_MAX_SKIPPED = 64

Items = Sequence[Hashable]


def pair_equal(old: Items, new: Items) -> list[int | None]:
    """For each item of `new` the position of its equal in `old`, None where it has none. No position comes twice."""
    pairs: list[int | None] = [None] * len(new)
    ranges = [(0, len(old), 0, len(new), 0)]
    while ranges:
        first_old, end_old, first_new, end_new, level = ranges.pop()
        while first_old < end_old and first_new < end_new and old[first_old] == new[first_new]:
            pairs[first_new] = first_old
            first_old, first_new = first_old + 1, first_new + 1
        while first_old < end_old and first_new < end_new and old[end_old - 1] == new[end_new - 1]:
            end_old, end_new = end_old - 1, end_new - 1
            pairs[end_new] = end_old
        if first_old == end_old or first_new == end_new:
            continue
        anchors = _unique_pairs(old, new, first_old, end_old, first_new, end_new) if level < _MAX_LEVELS else []
        if not anchors:
            _pair_greedily(old, new, (first_old, end_old, first_new, end_new), pairs)
            continue
        for at_old, at_new in [*anchors, (end_old, end_new)]:
            ranges.append((first_old, at_old, first_new, at_new, level + 1))
            if at_new < end_new:
                pairs[at_new] = at_old
            first_old, first_new = at_old + 1, at_new + 1
    _pair_moved(old, new, pairs)
    return pairs


def _unique_pairs(
    old: Items, new: Items, first_old: int, end_old: int, first_new: int, end_new: int
) -> list[tuple[int, int]]:
    """Positions of the items that stand once on both sides of a range: the longest run in the same order."""
    num_old, num_new = Counter(old[first_old:end_old]), Counter(new[first_new:end_new])
    where = {old[at]: at for at in range(first_old, end_old)}
    found = [
        (where[item], at)
        for at, item in enumerate(new[first_new:end_new], first_new)
        if num_new[item] == 1 and num_old[item] == 1
    ]
    return [found[index] for index in longest_ascending([at_old for at_old, _ in found])]


def longest_ascending(numbers: Sequence[int]) -> list[int]:
    """The indices of a longest ascending run of different numbers (patience sorting)."""
    tops: list[int] = []
    top_indices: list[int] = []
    before: list[int] = []
    for index, number in enumerate(numbers):
        pile = bisect_left(tops, number)
        before.append(top_indices[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(number)
            top_indices.append(index)
        else:
            tops[pile], top_indices[pile] = number, index
    run: list[int] = []
    index = top_indices[-1] if top_indices else -1
    while index >= 0:
        run.append(index)
        index = before[index]
    return run[::-1]


def _pair_greedily(old: Items, new: Items, bounds: tuple[int, int, int, int], pairs: list[int | None]) -> None:
    """Pair each item with the next equal one that is near."""
    first_old, end_old, first_new, end_new = bounds
    where: dict[Hashable, list[int]] = {}
    for at in range(first_old, end_old):
        where.setdefault(old[at], []).append(at)
    position = first_old
    for at in range(first_new, end_new):
        places = where.get(new[at], ())
        index = bisect_left(places, position)
        if index < len(places) and places[index] - position <= _MAX_SKIPPED:
            pairs[at] = places[index]
            position = places[index] + 1


def _pair_moved(old: Items, new: Items, pairs: list[int | None]) -> None:
    """Pair what is left over and stands once on both sides, wherever that is."""
    left = [at for at, pair in enumerate(pairs) if pair is None]
    if not left:
        return
    taken = {pair for pair in pairs if pair is not None}
    num_old, num_new = Counter(old), Counter(new)
    where = {item: at for at, item in enumerate(old) if at not in taken}
    for at in left:
        item = new[at]
        if num_new[item] == 1 and num_old[item] == 1 and item in where:
            pairs[at] = where[item]
