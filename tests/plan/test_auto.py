"""What `auto` sees of an edit, and what it makes of it. Token ids stand for words."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.plan.auto import (
    AUTO_REPAIR,
    DEFAULT_THRESHOLDS,
    AutoDecision,
    Features,
    choose_fidelity,
    measure,
)
from acmserve.plan.fidelity import RequestedFidelity, plan_wish
from acmserve.plan.lineage import LineageMark
from acmserve.plan.ngrams import GramIndex, cover
from acmserve.plan.planner import plan_edit
from acmserve.plan.repair import EVERYTHING, Repair, grain_of, plan_repair, without
from acmserve.plan.source import ServedSequence, Tokens
from tests.plan.test_planner import edited, source, tokens

MARKER = tokens(1, 2, 3)
AUTO = RequestedFidelity("auto")


def prose(num_tokens: int, seed: str) -> Tokens:
    rng = random.Random(seed)
    return np.array([rng.randrange(10, 20_000) for _ in range(num_tokens)], dtype=np.int32)


def updates(num_rounds: int, seed: str) -> Tokens:
    """`key key : value newline`, 40 keys in a round."""
    rng = random.Random(seed)
    lines = [(30_000 + key, 30_500 + key, 7, rng.randrange(31_000, 31_400), 8) for key in range(40)]
    rows = [(*line[:3], rng.randrange(31_000, 31_400), 8) for _ in range(num_rounds) for line in lines]
    return np.array(rows, dtype=np.int32).reshape(-1)


def edit(removed: Tokens, kept: Tokens) -> tuple[Tokens, list[ServedSequence]]:
    """A prompt in which a marker stands for `removed`, and its source."""
    opening = prose(64, "opening")
    return np.concatenate([opening, MARKER, kept, tokens(4)]), [source(np.concatenate([opening, removed, kept]))]


def features(removed: Tokens, kept: Tokens) -> Features:
    prompt, sources = edit(removed, kept)
    return measure(plan_edit(prompt, sources, allow_moves=True), prompt, sources).features


def choice(removed: Tokens, kept: Tokens) -> AutoDecision:
    prompt, sources = edit(removed, kept)
    planned = plan_wish(prompt, sources, AUTO)
    assert planned.choice is not None
    num_anew = sum(end - start for start, end in planned.anew)
    assert num_anew + sum(move.num_tokens for move in planned.plan.moves) == len(kept)
    assert bool(planned.plan.moves) == (planned.choice.fidelity != "exact")
    return planned.choice


def test_features_of_unrelated_text() -> None:
    assert features(prose(400, "F"), prose(900, "S")) == Features(
        num_moved=900, num_removed=400, num_inserted=3, num_cuts=1
    )


def listing(num_lines: int, seed: str) -> Tokens:
    """Lines of one form about other things: four tokens of form, and twenty that no other line has."""
    rng = random.Random(seed)
    form = (40_001, 40_002, 40_003, 40_004)
    rows = [(*form, *(rng.randrange(10, 20_000) for _ in range(20))) for _ in range(num_lines)]
    return np.array(rows, dtype=np.int32).reshape(-1)


def test_features_of_superseded_state() -> None:
    """Every line of S begins as a line of F did, and nearly all go on otherwise. No phrase of prose does."""
    found = features(updates(4, "F"), np.concatenate([prose(600, "S"), updates(2, "S")]))
    assert found.num_removed == 800
    assert 240 <= found.num_echoed <= 400 <= found.num_anew <= 400 + grain_of().rest_tokens
    assert found.num_listed == 0


@pytest.mark.parametrize(
    ("removed", "kept", "fidelity", "word"),
    [
        (prose(400, "F"), prose(900, "S"), "reuse", "900 tokens could move, 400 were removed and share no phrase"),
        (prose(1351, "F"), prose(900, "S"), "exact", "only 0 echo them: too few to tell"),
        (prose(50, "F"), prose(255, "S"), "exact", "only 0 echo them"),
        (
            np.append(prose(1500, "F"), updates(1, "F")),
            np.append(prose(340, "S"), updates(1, "S")[:100]),
            "exact",
            "too few",
        ),
        (updates(8, "F"), updates(8, "S"), "exact", "too few to move"),
        (updates(8, "F"), np.concatenate([prose(150, "S"), updates(8, "S")]), "exact", "too few to move"),
        (
            updates(5, "F"),
            np.concatenate([prose(300, "S"), updates(1, "S")]),
            "repair",
            "computed anew with what is behind them",
        ),
        (
            updates(20, "F"),
            np.concatenate([prose(300, "S"), updates(1, "S")]),
            "exact",
            "4000 tokens were removed in one piece",
        ),
        (updates(31, "F"), np.concatenate([prose(300, "S"), updates(1, "S")]), "exact", "6200 tokens were removed"),
        (listing(20, "F"), listing(40, "S"), "exact", "stand in lines that begin as removed text does"),
        (listing(20, "F"), np.concatenate([listing(40, "S"), prose(100, "S")]), "repair", "computed anew"),
        (updates(1, "F"), np.concatenate([prose(31, "S"), updates(1, "F")[:40]]), "exact", "leaves 31 of them"),
        (prose(600, "F"), np.concatenate([prose(120, "S"), prose(220, "F")]), "repair", "340 tokens could move"),
    ],
    ids=[
        "unrelated",
        "more-removed-than-kept",
        "short",
        "much-removed-and-few-echoes",
        "updates",
        "updates-and-little-else",
        "updates-in-prose",
        "ten-times-as-much-removed",
        "more-removed-than-was-tried",
        "one-list-of-a-form",
        "a-list-and-prose",
        "little-left-to-move",
        "quoted",
    ],
)
def test_choices(removed: Tokens, kept: Tokens, fidelity: str, word: str) -> None:
    chosen = choice(removed, kept)
    assert chosen.fidelity == fidelity
    assert word in chosen.reason


def test_one_long_piece_keeps_what_continues_it_from_moving_and_two_do_not() -> None:
    """1,400 tokens of one form are removed in front of 500: at once, or with 150 of prose between."""
    opening, first, second = prose(64, "opening"), updates(3, "first"), updates(4, "second")
    between, kept = prose(150, "between"), np.concatenate([prose(150, "S"), updates(1, "S")])
    one = plan_wish(
        np.concatenate([opening, MARKER, between, kept, tokens(4)]),
        [source(np.concatenate([opening, first, second, between, kept]))],
        AUTO,
    )
    two = plan_wish(
        np.concatenate([opening, MARKER, between, MARKER, kept, tokens(4)]),
        [source(np.concatenate([opening, first, between, second, kept]))],
        AUTO,
    )
    assert one.choice is not None
    assert two.choice is not None
    assert (one.choice.fidelity, two.choice.fidelity) == ("exact", "repair")
    assert "1400 tokens were removed in one piece in front of 500 that could move" in one.choice.reason


def test_an_insertion_much_larger_than_what_is_moved_is_exact() -> None:
    inserted = Features(num_moved=600, num_inserted=1801)
    assert choose_fidelity(inserted).fidelity == "exact"
    assert "1801 tokens were inserted" in choose_fidelity(inserted).reason
    assert choose_fidelity(replace(inserted, num_moved=601)).fidelity == "reuse"


def test_a_callers_own_repair_stays_beside_the_rules_echoes() -> None:
    mine = Repair(head_tokens=300)
    found = Features(num_moved=1000, num_removed=900, num_echoed=100, num_anew=120)
    assert choose_fidelity(found).repair == AUTO_REPAIR
    expected = replace(mine, echoes=True)
    assert choose_fidelity(found, mine).repair == expected
    assert choose_fidelity(found, replace(mine, rest_tokens=99)).repair == replace(expected, rest_tokens=99)
    assert choose_fidelity(replace(found, num_echoed=0, num_anew=0), mine).repair == expected
    assert choose_fidelity(found, Repair()).repair == Repair(echoes=True), (
        "the default numbers, asked for, are asked for"
    )
    assert choose_fidelity(replace(found, num_echoed=0, num_anew=0), Repair()).fidelity == "repair"


def test_few_echoes_are_computed_even_where_little_was_changed() -> None:
    """One updated line is enough to be misled."""
    found = Features(num_moved=9000, num_removed=100, num_echoed=40, num_anew=60)
    assert choose_fidelity(found).repair == AUTO_REPAIR
    assert choose_fidelity(replace(found, num_echoed=0, num_anew=0)).fidelity == "reuse"


def test_updates_of_removed_text_are_computed_anew_and_the_rest_is_moved() -> None:
    """Each value stands behind a phrase that the removed text had, too."""
    rest = prose(3000, "S")
    prompt, sources = edit(updates(8, "F"), np.concatenate([rest, updates(8, "S")]))
    planned = plan_wish(prompt, sources, AUTO)
    assert planned.choice is not None
    assert planned.choice.repair == AUTO_REPAIR
    (move,) = planned.plan.moves
    assert np.array_equal(prompt[move.dst_start : move.dst_end], rest)


def chain(num_thoughts: int, marker: Tokens) -> tuple[Tokens, list[ServedSequence]]:
    """Calls with a thought in front of each. The prompt has `marker` for each of them."""
    opening, kept = prose(64, "opening"), [prose(300, f"S{step}") for step in range(num_thoughts)]
    thoughts = [prose(100, f"F{step}") for step in range(num_thoughts)]
    old = np.concatenate([opening, *(part for step in zip(thoughts, kept, strict=True) for part in step)])
    new = np.concatenate([opening, *(part for text in kept for part in (marker, text)), tokens(4)])
    return new, [source(old)]


@pytest.mark.parametrize("num_thoughts", [1, 4, 5, 20])
def test_a_chain_of_dropped_thoughts_is_exact(num_thoughts: int) -> None:
    """Up to four pieces are moved. The controls have a marker for each piece, or are asked for `reuse`."""
    none, seam = tokens(), tokens(5, 6)
    for marker in (none, seam):
        prompt, sources = chain(num_thoughts, marker)
        planned = plan_wish(prompt, sources, AUTO)
        assert planned.choice is not None
        assert planned.choice.fidelity == ("reuse" if num_thoughts <= 4 else "exact"), planned.choice
        if num_thoughts > 4:
            assert planned.choice.reason.startswith(f"{num_thoughts} pieces were removed and nothing stands for them")
        assert plan_wish(prompt, sources, RequestedFidelity("reuse")).plan.moves
    prompt, sources = chain(num_thoughts, MARKER)
    planned = plan_wish(prompt, sources, AUTO)
    assert planned.choice is not None
    assert planned.choice.fidelity == "reuse"


def test_nothing_to_move_is_exact() -> None:
    old = prose(500, "old")
    planned = plan_wish(np.append(old, tokens(1, 2)), [source(old)], AUTO)
    assert planned.choice == AutoDecision("exact", "nothing would be moved")
    assert (planned.plan.num_kept, planned.anew) == (500, ())


def test_a_model_that_cannot_move_says_so() -> None:
    prompt, sources = edit(prose(400, "F"), prose(900, "S"))
    planned = plan_wish(prompt, sources, AUTO, refusal="rope: mrope")
    assert planned.choice == AutoDecision("exact", "rope: mrope")
    assert planned.plan.moves == ()
    assert plan_wish(prompt, sources, RequestedFidelity("repair"), refusal="rope: mrope").choice is None


def served(num_removed: int) -> ServedSequence:
    """1,000 tokens, of which 800 were moved."""
    return source(prose(1000, "served"), (LineageMark(200, b"key", 800, 1, num_removed),))


def test_a_moved_prefix_stays_as_it_was_chosen() -> None:
    planned = plan_wish(np.append(served(300).tokens, MARKER), [served(300)], AUTO)
    assert planned.choice is not None
    assert planned.choice.fidelity == "reuse"
    assert planned.plan.num_kept == 1000


def test_too_much_removed_over_time_is_computed_anew() -> None:
    """Also where this turn edits nothing: an earlier one asked for `reuse`."""
    planned = plan_wish(np.append(served(9601).tokens, MARKER), [served(9601)], AUTO)
    assert planned.choice is not None
    assert planned.choice.fidelity == "exact"
    assert "9601 tokens were removed" in planned.choice.reason
    assert (planned.plan.num_kept, planned.anew) == (200, ((200, 1000),))


def test_what_may_not_be_moved_is_computed_on_top_of_a_moved_prefix() -> None:
    """Forty tokens are folded near the end: the hundred behind them are not worth 800 in front."""
    old = served(300)
    prompt = np.concatenate([old.tokens[:860], MARKER, old.tokens[900:], MARKER + 10])
    planned = plan_wish(prompt, [old], AUTO)
    assert planned.choice is not None
    assert (planned.choice.fidelity, planned.choice.repair) == ("repair", EVERYTHING)
    assert (planned.plan.num_kept, planned.plan.moves, planned.anew) == (860, (), ((863, 963),))


@pytest.mark.parametrize(("num_removed", "fidelity"), [(9300, "repair"), (9400, "exact")])
def test_a_moved_prefix_stays_where_edits_add_up_behind_it(num_removed: int, fidelity: str) -> None:
    """The second edit cuts behind 780 moved tokens. They never saw what it removes, so `exact` is no cheaper there."""
    old = source(np.concatenate([served(0).tokens, prose(500, "F"), prose(400, "S")]), served(num_removed).marks)
    prompt = np.concatenate([old.tokens[:980], MARKER, old.tokens[1500:], MARKER + 10])
    planned = plan_wish(prompt, [old], AUTO)
    assert planned.choice is not None
    assert planned.choice.fidelity == fidelity
    assert f"{num_removed + 520} tokens were removed by this and earlier edits" in planned.choice.reason
    assert planned.plan.num_kept == (980 if fidelity == "repair" else 200)
    assert planned.plan.moves == ()
    assert planned.anew[-1] == (983, 1383)


def test_a_short_moved_prefix_does_not_keep_long_text_from_moving() -> None:
    """Ten moved tokens are kept, from which a hundred times as much was removed, and 5,000 stand behind the cut."""
    old = source(
        np.concatenate([prose(200, "served"), prose(310, "first"), prose(5000, "S")]),
        (LineageMark(200, b"key", 5310, 1, 1000),),
    )
    prompt = np.concatenate([old.tokens[:210], MARKER, old.tokens[510:], MARKER + 10])
    planned = plan_wish(prompt, [old], AUTO)
    assert planned.choice is not None
    assert (planned.choice.fidelity, planned.plan.num_kept) == ("reuse", 210)
    assert sum(move.num_tokens for move in planned.plan.moves) == 5000


def test_removed_text_adds_up_over_edits() -> None:
    """Each edit removes a hundred of 1,000. The lineage remembers the last, until as much is gone as is left."""
    context, removed = prose(1000, "chain"), []
    last = source(context)
    for turn in range(8):
        prompt = np.concatenate([last.tokens[:50], last.tokens[150:], prose(20, f"turn {turn}")])
        planned = plan_wish(prompt, [last], AUTO)
        assert planned.choice is not None
        removed.append((planned.choice.fidelity, sum(r.num_tokens for r in planned.plan.removed)))
        marks = tuple(
            LineageMark(m.dst_start, b"", m.num_tokens, 1, num_removed)
            for m, num_removed in zip(planned.plan.moves, planned.plan.num_removed_before([last]), strict=True)
        )
        last = source(prompt, marks)
    assert [fidelity for fidelity, _ in removed[:4]] == ["reuse"] * 4
    assert "exact" in [fidelity for fidelity, _ in removed[4:]]


@given(edited(), st.integers(1, 10))
@settings(max_examples=200, deadline=None)
def test_features_of_any_edit(case: tuple[Tokens, list[ServedSequence]], min_move_tokens: int) -> None:
    prompt, sources = case
    grain = grain_of(min_move_tokens)
    plan = plan_edit(prompt, sources, allow_moves=True, min_move_tokens=grain.piece_tokens)
    survey = measure(plan, prompt, sources, grain)
    found = survey.features
    assert 0 <= found.num_echoed <= found.num_anew <= found.num_anew + found.num_listed <= found.num_moved
    repaired = plan_repair(plan, prompt, sources, replace(AUTO_REPAIR, rest_tokens=grain.rest_tokens), min_move_tokens)
    assert without(plan, survey.anew) == repaired, "what was counted is what is carried out"
    assert found.num_moved + found.num_inserted + plan.num_kept < len(prompt)
    assert choose_fidelity(found, thresholds=DEFAULT_THRESHOLDS).reason


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 3), max_size=30), st.integers(0, 60))
def test_phrases_against_a_search_by_hand(old: list[int], text: list[int], limit: int) -> None:
    cut = len(old) // 2
    spans = [(0, cut), (min(cut + 2, len(old)), len(old))]
    index = GramIndex(tokens(*old), spans, 3)
    seen = [tuple(old[i : i + 3]) for a, b in spans for i in range(a, b - 2) if i + 3 <= limit]
    expected = [tuple(text[i : i + 3]) in seen for i in range(len(text) - 2)]
    assert index.find(tokens(*text), limit).tolist() == expected
    if len(text) >= 3:
        inside = [any(expected[max(0, i - 2) : i + 1]) for i in range(len(text))]
        assert cover(index.find(tokens(*text), limit), 3).tolist() == inside


def test_where_each_hole_is_a_forward_pass_short_rests_are_computed() -> None:
    """A line of eight echoes after every twelve tokens of prose: moved in pieces, or not at all."""
    removed, words = prose(200, "F"), prose(720, "S")
    lines = [np.concatenate([words[12 * i : 12 * i + 12], removed[8 * (i % 20) :][:8]]) for i in range(40)]
    prompt, sources = edit(removed, np.concatenate([*lines, words[480:]]))
    many, few = (plan_wish(prompt, sources, AUTO, has_passes=has).plan.moves for has in (True, False))
    assert (len(many), len(few)) == (41, 1)
    assert plan_wish(prompt, sources, AUTO).plan.moves == many
    own = RequestedFidelity("auto", Repair(head_tokens=5))
    assert [len(plan_wish(prompt, sources, own, has_passes=has).plan.moves) for has in (True, False)] == [40, 1]
