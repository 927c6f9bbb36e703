"""Ranges and branches are found by bisection, and are those that the definition says."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from acmserve.context.session.branches.branch import Branch, branch_at, hide_closed
from acmserve.context.session.carrying.fragments import Landing
from acmserve.context.session.carrying.omissions import _Behind
from acmserve.context.transcript.omissions import MessageOmissions, Omissions, with_ranges
from tests.support.operations import growth

SEEDS = range(40)
NUM_ENTRIES = 24
KEPT = MessageOmissions(text=True)


def naive_with_range(omissions: Omissions, start: int, end: int) -> Omissions:
    """One range. What it touches grows together with it."""
    inside = [entry for entry in omissions.entries if start <= entry < end]
    if not inside and any(first <= start and end <= last for first, last in omissions.gone):
        return omissions
    touching = [(first, last) for first, last in omissions.gone if first <= end and start <= last]
    merged = (min([start, *(first for first, _ in touching)]), max([end, *(last for _, last in touching)]))
    gone = sorted([*(piece for piece in omissions.gone if piece not in touching), merged])
    return Omissions(tuple(gone), {entry: kept for entry, kept in omissions.entries.items() if entry not in inside})


def ranges_of(rng: random.Random) -> list[tuple[int, int]]:
    """Ranges that are apart, in order."""
    ends = sorted(rng.sample(range(NUM_ENTRIES), 2 * rng.randint(0, 4)))
    return list(zip(ends[::2], ends[1::2], strict=True))


def branches_of(rng: random.Random) -> list[Branch]:
    """Branches in order. Some are empty, and the last may be open."""
    ends = sorted(rng.sample(range(2, NUM_ENTRIES), 3 * rng.randint(0, 4)))
    found = [
        Branch(f"b{call}", call, call, start, "look", "Look.", rng.choice([start, end, end]))
        for call, start, end in zip(ends[::3], ends[1::3], ends[2::3], strict=True)
    ]
    return [*found[:-1], replace(found[-1], end=None)] if found and rng.random() < 0.3 else found


@pytest.mark.parametrize("seed", SEEDS)
def test_ranges_go_as_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        entries = dict.fromkeys(rng.sample(range(NUM_ENTRIES), rng.choice([0, 0, 2, 5])), KEPT)
        before, ranges = Omissions(tuple(ranges_of(rng)), entries), ranges_of(rng)
        wanted = before
        for start, end in ranges:
            wanted = naive_with_range(wanted, start, end)
        found = with_ranges(before, ranges)
        assert found == wanted
        assert (found is before) is (wanted is before)
        assert list(found.entries) == list(wanted.entries)
        found.check_integrity()
        assert with_ranges(found, ranges) is found


@pytest.mark.parametrize("seed", SEEDS)
def test_the_branch_of_an_entry_is_the_one_that_holds_it(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(30):
        branches = branches_of(rng)
        for entry in range(NUM_ENTRIES):
            assert branch_at(branches, entry) is next((branch for branch in branches if branch.holds(entry)), None)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_stood_before_an_entry_ends_where_its_last_one_stands(seed: int) -> None:
    rng = random.Random(seed)
    old = rng.sample(range(NUM_ENTRIES), rng.randint(0, NUM_ENTRIES))
    landings = {entry: Landing(rng.randrange(NUM_ENTRIES)) for entry in old}
    behind = _Behind(landings)
    for entry in range(NUM_ENTRIES + 1):
        wanted = max((landing.entry + 1 for at, landing in landings.items() if at < entry), default=0)
        assert behind.at(entry) == wanted


def test_many_branches_are_hidden_in_linear_time() -> None:
    def work(num: int) -> Callable[[], object]:
        branches: Sequence[Branch] = [Branch("b", 4 * n, 4 * n + 1, 4 * n + 2, "l", "L", 4 * n + 4) for n in range(num)]
        before = Omissions((), {4 * n + 2: KEPT for n in range(num)})
        return lambda: hide_closed(before, branches)

    assert growth(work, 50) < 5.5
