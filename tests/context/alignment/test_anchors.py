"""Equal items are paired in a longest common order, what has moved beside it, and hostile input costs a few passes."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.alignment.anchors import longest_ascending, pair_equal

LETTERS = st.lists(st.sampled_from("abcdefgh"), max_size=30)


@pytest.mark.parametrize(
    ("old", "new", "pairs"),
    [
        ("abc", "abcd", [0, 1, 2, None]),
        ("abcd", "ab", [0, 1]),
        ("abc", "xabc", [None, 0, 1, 2]),
        ("abcd", "axcd", [0, None, 2, 3]),
        ("abbcbd", "abxbcd", [0, 1, None, 2, 3, 5]),
        ("shHFGua", "shuaFGv", [0, 1, 5, 6, 3, 4, None]),
        ("", "ab", [None, None]),
    ],
    ids=["append", "rewind", "in front", "exchanged", "neighbours", "moved behind", "empty"],
)
def test_pairs(old: str, new: str, pairs: list[int | None]) -> None:
    assert pair_equal(old, new) == pairs


@given(LETTERS, LETTERS)
def test_pairs_are_equal_and_no_old_item_comes_twice(old: list[str], new: list[str]) -> None:
    pairs = pair_equal(old, new)
    found = [pair for pair in pairs if pair is not None]
    assert len(set(found)) == len(found)
    assert all(old[pair] == new[at] for at, pair in enumerate(pairs) if pair is not None)


@given(LETTERS, LETTERS)
def test_what_is_unique_on_both_sides_is_always_found(old: list[str], new: list[str]) -> None:
    pairs, num_old, num_new = pair_equal(old, new), Counter(old), Counter(new)
    for at, item in enumerate(new):
        if num_old[item] == num_new[item] == 1:
            assert pairs[at] == old.index(item)


@given(LETTERS, LETTERS)
def test_an_appended_history_is_known_whole(old: list[str], new: list[str]) -> None:
    assert pair_equal(old, [*old, *new])[: len(old)] == list(range(len(old)))


@given(st.lists(st.integers(0, 99), unique=True, max_size=12))
def test_a_longest_ascending_run(numbers: list[int]) -> None:
    run = [numbers[index] for index in longest_ascending(numbers)]
    assert run == sorted(run)
    longest = [0] * len(numbers)
    for index, number in enumerate(numbers):
        longest[index] = 1 + max((longest[k] for k in range(index) if numbers[k] < number), default=0)
    assert len(run) == max(longest, default=0)


class Counted:
    """An item that counts how often it is compared and hashed."""

    num_uses = 0

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: Any) -> bool:
        Counted.num_uses += 1
        return bool(self.value == other.value)

    def __hash__(self) -> int:
        Counted.num_uses += 1
        return hash(self.value)


def hostile(kind: str, num: int) -> tuple[list[int], list[int]]:
    rng = random.Random(7)
    if kind == "equal":
        return [1] * num, [1] * (num // 2) + [2] + [1] * (num // 2)
    if kind == "two values":
        return [rng.randint(0, 1) for _ in range(num)], [rng.randint(0, 2) for _ in range(num)]
    if kind == "reversed":
        return list(range(num)), list(range(num))[::-1]
    if kind == "halves":
        return [0, *range(1, num // 2), *range(1, num // 2)], [*range(1, num // 2), 0, *range(1, num // 2)]
    return list(range(num)), rng.sample(range(num), num)


@pytest.mark.parametrize("kind", ["equal", "two values", "reversed", "halves", "shuffled"])
def test_hostile_input_costs_a_few_passes(kind: str) -> None:
    num = 20_000
    old, new = hostile(kind, num)
    Counted.num_uses = 0
    pairs = pair_equal([Counted(value) for value in old], [Counted(value) for value in new])
    assert len(pairs) == len(new)
    assert Counted.num_uses < 60 * num
