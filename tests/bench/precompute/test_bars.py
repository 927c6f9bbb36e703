"""The bars of `bench precompute`, on made records: each is met by one and missed by another. No clock, no server."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest

from acmserve.bench.agent.estimates import bootstrap_interval, student_ratio_interval
from acmserve.bench.agent.result_table import told_by
from acmserve.bench.precompute.bars import edited_over_appends, judge_rounds, waiting_bound
from acmserve.bench.precompute.runs import EXACT, PREDICT
from acmserve.bench.precompute.table import BARS, ROUNDS, as_rounds_report, spent_and_saved
from acmserve.bench.precompute.turn_statistics import ordinary_pairs
from acmserve.bench.provenance.machine_use import is_busy
from acmserve.bench.report.sections.missed import PAIRED
from acmserve.bench.report.sections.renewed import renewed
from tests.support.docs.figures import read_result
from tests.support.recorded.rounds import (
    ABOUT,
    EDITED,
    FAST,
    NUM_TURNS,
    SLOW,
    judged,
    made_rounds,
    made_turns,
    seconds_of,
)


def test_precompute_that_costs_nothing_and_makes_edits_cheap_meets_every_bar() -> None:
    """Where an edit saves less than a fifth of all waiting, that bar is missed."""
    found = judged(lambda _: made_turns(FAST))
    assert (found["ordinary"].value, found["ordinary"].interval, found["ordinary"].is_met) == (1.0, [1.0, 1.0], True)
    assert found["edited"].interval is None, "a 90th percentile of ten turns has no interval"
    assert found["ordinary"].num_turns == 5 * (NUM_TURNS - 2), "neither the first turn nor the edited one"
    assert found["edited"].value == pytest.approx(FAST / seconds_of(100 + EDITED))
    assert found["edited"].is_met
    total = 1.0 + SLOW + sum(seconds_of(100 + n) for n in range(1, NUM_TURNS) if n != EDITED)
    assert found["waiting"].value == pytest.approx((total - SLOW + FAST) / total)
    assert all(bar.is_met for bar in found.values())
    less = judged(lambda _: made_turns(SLOW - 0.15 * total))["waiting"]
    assert less.value == pytest.approx(0.85)
    assert not less.is_met


def test_the_bound_of_all_waiting_is_that_of_edits_which_are_appends() -> None:
    """A fold that takes as long as an append leaves nothing to gain, and one without a line of appends has no bound."""
    total = 1.0 + SLOW + sum(seconds_of(100 + n) for n in range(1, NUM_TURNS) if n != EDITED)
    bound = waiting_bound(made_rounds(lambda _: made_turns(FAST)))
    assert bound == pytest.approx((total - SLOW + seconds_of(100 + EDITED)) / total, abs=1e-3)
    rounds = made_rounds(lambda _: made_turns(FAST))
    for one in rounds:
        one["runs"][EXACT]["turns"]["seconds"][EDITED] = seconds_of(100 + EDITED)
    assert waiting_bound(rounds) == pytest.approx(1.0, abs=1e-3)
    for one in rounds:
        one["runs"][EXACT]["turns"] = {name: column[:2] for name, column in made_turns(FAST).items()}
    assert waiting_bound(rounds[:1]) is None


def test_slower_ordinary_turns_miss_their_bar() -> None:
    """The control: 4 % on every append. The line is that of `off`: slow appends forgive no edit."""
    found = judged(lambda _: made_turns(FAST, factor=1.04))
    assert found["ordinary"].value == pytest.approx(1.04)
    assert not found["ordinary"].is_met
    assert found["edited"].value == pytest.approx(FAST / seconds_of(100 + EDITED)), (
        "slow appends of its own forgive nothing"
    )


def slowed(some: Callable[[int], float]) -> dict[str, list[Any]]:
    turns = made_turns(FAST)
    turns["seconds"] = [some(number) * seconds for number, seconds in enumerate(turns["seconds"])]
    return turns


def test_an_interval_that_reaches_over_the_bar_misses_it() -> None:
    """Every round lies 20 % apart from the next one."""
    found = judged(lambda number: slowed(lambda _: 0.9 if number % 2 else 1.1))
    assert found["ordinary"].value == pytest.approx(1.0, abs=0.11)
    for name in ("ordinary", "together"):
        ends = found[name].interval
        assert ends is not None
        assert ends[1] > 1.03
        assert not found[name].is_met


def test_turns_of_one_round_drift_together() -> None:
    """The control: a bootstrap of single turns calls this met. By rounds the machine alone makes as much."""
    factors = (0.94, 0.96, 0.98, 1.0, 1.02)
    rounds = made_rounds(lambda number: made_turns(FAST, factor=factors[number]))
    both = [(one["runs"][PREDICT]["turns"], one["runs"][EXACT]["turns"]) for one in rounds]
    ratios = [on / off for turns, others in both for on, off in ordinary_pairs(turns, others)]
    _, of_turns = bootstrap_interval(ratios, statistics.fmean)
    median, together, waiting, _ = judge_rounds(rounds)
    ends = student_ratio_interval(factors)
    assert of_turns < 0.99
    for bar in (median, together):
        assert bar.interval == pytest.approx(ends, abs=1e-4)
    assert ends[1] > 1.01
    assert waiting.interval is not None
    assert waiting.value is not None
    assert waiting.interval[0] < waiting.value < waiting.interval[1]


def test_one_round_has_no_interval_and_meets_no_bar_that_asks_for_one() -> None:
    ordinary, together, waiting, _ = judge_rounds(made_rounds(lambda _: made_turns(FAST), 1))
    assert [bar.interval for bar in (ordinary, together, waiting)] == [None] * 3
    assert [bar.is_met for bar in (ordinary, together, waiting)] == [False, False, True]


def test_some_turns_that_wait_for_a_chunk_miss_the_second_bar_of_ordinary_turns() -> None:
    """The median of all is 1. One turn in three takes half as long again."""
    found = judged(lambda _: slowed(lambda number: 1.0 if number % 3 else 1.5))
    assert (found["ordinary"].value, found["ordinary"].is_met) == (1.0, True)
    assert found["together"].value == pytest.approx(1.17, abs=0.01)
    assert not found["together"].is_met


def test_turns_whose_kv_precompute_pushed_out_are_ordinary_and_miss_their_bar() -> None:
    """They have the prompt that `off` has, and compute thousands of its tokens again. Neither side edits them."""

    def polluted(_: int) -> dict[str, list[Any]]:
        turns = made_turns(FAST)
        for number in range(1, NUM_TURNS, 4):
            turns["computed_tokens"][number] += 3000
            turns["seconds"][number] += 3.0
        return turns

    found = judged(polluted)
    assert found["ordinary"].num_turns == 5 * (NUM_TURNS - 2)
    assert found["together"].value is not None
    assert found["together"].value > 2
    assert not found["together"].is_met


def test_edited_turns_that_were_not_ready_miss_their_bar() -> None:
    """One in five is within the slowest tenth."""
    found = judged(lambda number: made_turns(SLOW if number == 3 else FAST))
    assert found["edited"].value == pytest.approx(SLOW / seconds_of(100 + EDITED))
    assert not found["edited"].is_met


def test_edited_turns_behind_a_shorter_pause_are_not_judged() -> None:
    """The same slow one comes behind 0.9 s, and then nothing of it is asked."""
    found = judged(lambda number: made_turns(SLOW, pause=0.9) if number == 3 else made_turns(FAST, pause=1.0))
    assert (found["edited"].num_turns, found["edited"].is_met) == (4, True)
    none = judged(lambda _: made_turns(FAST, pause=0.9))["edited"]
    assert (none.num_turns, none.value, none.is_met) == (0, None, False)


def test_a_later_step_of_a_loop_is_neither_an_ordinary_turn_nor_judged_as_an_edited_one() -> None:
    on, off = made_turns(FAST), made_turns(SLOW)
    on["follows_pause"][5] = off["follows_pause"][5] = 0
    on["pause_seconds"][EDITED] = 0.0
    rounds = made_rounds(lambda _: on, 1)
    rounds[0]["runs"][EXACT]["turns"] = off
    ordinary, _, _, edited = judge_rounds(rounds)
    assert (ordinary.num_turns, edited.num_turns) == (NUM_TURNS - 3, 0)


def test_without_two_appends_of_different_sizes_there_is_no_line() -> None:
    on = {name: column[:2] for name, column in made_turns(FAST).items()}
    assert edited_over_appends([(on, on)]) == []


def test_the_table_says_which_bar_was_missed() -> None:
    report = as_rounds_report(ABOUT, made_rounds(lambda _: made_turns(FAST, factor=1.04)))
    text = "\n".join(told_by(BARS, ROUNDS)(report))
    assert "1.04 [1.04, 1.04]" in text
    assert text.count("missed") == 2
    assert text.count("the bound") == 1
    assert text.count(" met") == 2
    none = as_rounds_report(ABOUT, made_rounds(lambda _: made_turns(FAST, pause=0.9)))
    assert "no such turn" in "\n".join(told_by(BARS, ROUNDS)(none))
    assert report["rounds"][3]["runs"][PREDICT]["turns"]["pause_seconds"][5] == 2.0


def test_the_rounds_say_what_precompute_spends_and_what_became_of_it() -> None:
    """Tokens that are neither used nor wasted are still there. A report that did not count one has nothing there."""
    report = as_rounds_report(ABOUT, made_rounds(lambda _: made_turns(FAST), 2))
    assert [row[4:9] for row in ROUNDS.rows(report)] == [["", "1,500", "", "", ""]] * 2 + [["", "3,000", "", "", ""]]
    counters = {
        "precomputed_tokens": 2500.0,
        "precomputed_used_tokens": 900.0,
        "precomputed_wasted_tokens": 600.0,
        "precomputed_left_tokens": 512.0,
        "precomputed_seconds": 6.25,
    }
    for one in report["rounds"]:
        one["runs"][PREDICT]["counters"] = counters
    first, _, together = ROUNDS.rows(report)
    assert first[4:9] == ["2,500", "900", "600", "512", "1,000"]
    assert together[:3] == ["`cwl`", "all", ""]
    assert together[4:9] == ["5,000", "1,800", "1,200", "1,024", "2,000"]
    saved = 2 * (SLOW - FAST)
    assert (together[9], together[10]) == ("12.5 s", f"{saved:.1f} s")
    assert float(together[12][:-2]) - float(together[11][:-2]) == pytest.approx(saved, abs=0.11)
    assert spent_and_saved(report["rounds"]) == pytest.approx((12.5, saved))


def test_a_recorded_result_has_the_bars_of_its_rounds_and_not_those_that_its_file_has() -> None:
    report = as_rounds_report(ABOUT, made_rounds(lambda _: made_turns(FAST)))
    wrong = report | {"bars": [bar | {"interval": [0.0, 0.0], "is_met": False} for bar in report["bars"]]}
    assert renewed("precompute-paired", wrong) == report
    assert renewed("another", wrong) is wrong
    for name in PAIRED:
        recorded = read_result(name)
        again = renewed(name, recorded)["bars"]
        assert [bar["value"] for bar in again[2:]] == [bar["value"] for bar in recorded["bars"][2:]]
        spoilt = recorded | {"bars": [bar | {"interval": [0.0, 0.0]} for bar in recorded["bars"]]}
        assert renewed(name, spoilt)["bars"] == again != spoilt["bars"]


def test_the_use_of_a_run_is_that_of_its_rounds() -> None:
    """A run that was gone on with took place in several processes, and each knows its own rounds alone.

    One round of which others had much makes it busy, although the average of all is quiet.
    """
    rounds = made_rounds(lambda _: made_turns(FAST), 2)
    assert "use" not in as_rounds_report(ABOUT, rounds)
    for one, seconds, other in zip(rounds, (100.0, 300.0), (0.0, 0.2), strict=True):
        one["use"] = {"seconds": seconds, "own_share": 0.5, "other_share": other, "stolen_share": None}
    use = as_rounds_report(ABOUT, rounds)["use"]
    shares = {"own_share": 0.5, "other_share": 0.15, "stolen_share": None}
    assert use == {"seconds": 400.0, **shares, "is_any_busy": True}
    rounds[1]["use"]["other_share"] = 0.12
    report = as_rounds_report(ABOUT, rounds)
    assert report["use"]["other_share"] == 0.09
    assert is_busy(report)


def test_a_round_that_failed_leaves_no_number() -> None:
    rounds = made_rounds(lambda _: made_turns(FAST))
    rounds[2] |= {"failures": ["round 2: 3 tokens are not those of `off`"], "runs": {}}
    report = as_rounds_report(ABOUT, rounds)
    assert (report["bars"], report["rounds"]) == ([], [])
    assert told_by(BARS, ROUNDS)(report)[0] == "GATE RED, so nothing is reported:"
