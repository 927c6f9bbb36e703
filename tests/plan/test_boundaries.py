"""Which boundaries a hybrid model keeps: under the budget, the most valuable first, one for each step."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from acmserve.plan.rules.boundaries import (
    BoundaryPlan,
    BoundaryRules,
    GroupTail,
    next_boundary,
    next_stop,
    plan_boundaries,
    weigh_boundaries,
)

BLOCK = 16
WINDOW = BoundaryRules(BLOCK, 0, (GroupTail(BLOCK, 4),), 1024, stops_itself=False)
RECURRENT = BoundaryRules(64, 0, (GroupTail(64, 1), GroupTail(64, 1)), 4096, stops_itself=True)
DRAFTED = BoundaryRules(BLOCK, BLOCK, (GroupTail(BLOCK, 5, num_behind=1),), 1024, stops_itself=False)
MIXED = BoundaryRules(64, 0, (GroupTail(16, 4), GroupTail(32, 2), GroupTail(64, 1)), 1024, stops_itself=True)

some_rules = st.sampled_from([WINDOW, RECURRENT, DRAFTED, MIXED])
spans = st.lists(
    st.tuples(st.integers(0, 1500), st.integers(1, 300)).map(lambda pair: (pair[0], sum(pair))), max_size=12
)


def held(boundaries: tuple[int, ...], rules: BoundaryRules) -> set[tuple[int, int]]:
    return {(g, block) for b in boundaries for g, tail in enumerate(rules.tails) for block in tail.blocks_at(b)}


def fallback(weights: dict[int, int], chosen: tuple[int, ...]) -> int:
    """Tokens that edits fall back, weighted by the tokens of their pieces."""
    return sum(
        weight * (boundary - max((place for place in chosen if place <= boundary), default=0))
        for boundary, weight in weights.items()
    )


def test_the_tail_of_a_window_is_what_vllm_wants_for_a_hit() -> None:
    assert list(WINDOW.tails[0].blocks_at(192)) == [8, 9, 10, 11]
    assert list(WINDOW.tails[0].blocks_at(32)) == [0, 1]
    assert list(RECURRENT.tails[0].blocks_at(192)) == [2]
    assert list(DRAFTED.tails[0].blocks_at(192)) == [8, 9, 10, 11, 12]


def test_boundaries_stand_in_front_of_the_pieces() -> None:
    pieces = [(0, 8), (5, 90), (200, 260), (205, 207), (995, 999)]
    assert weigh_boundaries(pieces, 1000, WINDOW) == {192: 62}, "not at the start, not where vLLM keeps one itself"
    assert weigh_boundaries([(200, 260)], 1000, DRAFTED) == {176: 60}, "vLLM drops the last block of a hit"


@given(spans, st.integers(2, 2000), some_rules)
def test_a_boundary_is_found_by_an_edit_behind_it(
    pieces: list[tuple[int, int]], num_tokens: int, rules: BoundaryRules
) -> None:
    weights = weigh_boundaries(pieces, num_tokens, rules)
    for boundary in weights:
        assert boundary % rules.alignment == 0
        assert any(
            boundary + rules.num_back <= start < boundary + rules.num_back + rules.alignment for start, _ in pieces
        )
    far = rules.at(num_tokens - 1)
    assert sum(weights.values()) == sum(end - start for start, end in pieces if 0 < rules.at(start) < far)


@given(spans, st.integers(0, 1500), st.integers(0, 40), st.data(), some_rules)
def test_a_plan_keeps_its_budget(
    pieces: list[tuple[int, int]], num_found: int, max_blocks: int, data: st.DataObject, rules: BoundaryRules
) -> None:
    weights = weigh_boundaries(pieces, 2000, rules)
    kept = data.draw(st.sets(st.sampled_from(sorted(weights)))) if weights else set()
    plan = plan_boundaries(weights, num_found, kept, rules, max_blocks)
    assert plan.num_blocks == len(held(plan.chosen, rules)) <= max_blocks
    assert plan.wanted == tuple(sorted(weights))
    assert plan.chosen == tuple(sorted(set(plan.chosen)))
    assert all(place in kept or place > num_found for place in plan.chosen)
    left = [place for place in weights if place not in plan.chosen and (place in kept or place > num_found)]
    for place in left:
        assert len(held((*plan.chosen, place), rules)) > max_blocks, "one more would have fitted"
    assert fallback(weights, plan.chosen) <= fallback(weights, ())


@given(spans, st.integers(1, 4))
def test_the_most_valuable_is_taken_first(pieces: list[tuple[int, int]], num: int) -> None:
    """With tails of the same size that share nothing, the first choice is the best single one."""
    weights = weigh_boundaries(pieces, 2000, RECURRENT)
    chosen = plan_boundaries(weights, 0, (), RECURRENT, 2 * num).chosen
    assert len(chosen) == min(num, len(weights))
    best = min((fallback(weights, some) for some in combinations(weights, 1)), default=0)
    if num == 1 and chosen:
        assert fallback(weights, chosen) == best
    assert fallback(weights, chosen) <= best or not weights


def test_greedy_values_are_those_of_the_fallback() -> None:
    """A piece of 1,000 tokens at 1,024 is worth more than four of 10 in front. The next is where most is left."""
    weights = {192: 10, 256: 10, 512: 10, 960: 10, 1024: 1000}
    assert plan_boundaries(weights, 0, (), RECURRENT, 2).chosen == (1024,)
    assert plan_boundaries(weights, 0, (), RECURRENT, 4).chosen == (512, 1024)


@given(spans, some_rules, st.integers(1, 700), st.integers(0, 400))
def test_every_boundary_is_named_while_its_blocks_are_computed(
    pieces: list[tuple[int, int]], rules: BoundaryRules, budget: int, num_found: int
) -> None:
    """Plays vLLM: a chunk a step, one named boundary each, whose blocks inside the chunk are kept."""
    boundaries = plan_boundaries(weigh_boundaries(pieces, 2000, rules), num_found, (), rules, 10_000).chosen
    position, kept = num_found, set[tuple[int, int]]()
    kept |= {(g, block) for g, tail in enumerate(rules.tails) for block in range(num_found // tail.block_size)}
    while position < 2000:
        named = next_boundary(boundaries, position, rules)
        end = min(2000, position + budget)
        if rules.stops_itself:
            end = named if named is not None and position < named < end else end
        else:
            stop = next_stop(boundaries, position, rules)
            end = end if stop is None else min(end, stop)
        assert end > position
        if named is not None:
            for group, tail in enumerate(rules.tails):
                whole = range(position // tail.block_size, end // tail.block_size)
                kept |= {(group, block) for block in tail.blocks_at(named) if block in whole}
        position = end
    assert held(boundaries, rules) <= kept


def test_without_stops_a_second_boundary_would_be_lost() -> None:
    """Control of the test above: one chunk of the whole prompt keeps the first alone."""
    assert next_boundary((192, 640), 0, WINDOW) == 192
    assert next_stop((192, 640), 0, WINDOW) == 576
    assert next_stop((192, 224), 0, WINDOW) == 192
    assert next_stop((192,), 0, WINDOW) is None


def test_nothing_is_planned_for_nothing() -> None:
    assert plan_boundaries({}, 0, (), WINDOW, 10) == BoundaryPlan()
