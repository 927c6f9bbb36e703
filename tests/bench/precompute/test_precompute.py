"""The numbers of `bench ahead`, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.bench.agent.scripted_agent import Exchanged, Trace
from acmserve.bench.budget.run import Turn
from acmserve.bench.harness.options import as_gate
from acmserve.bench.models.witnessed_model import Agreement, Said, compare
from acmserve.bench.precompute.foreground import Round, as_row, foreground_table, in_order, wave_ratio
from acmserve.bench.precompute.main import main
from acmserve.bench.precompute.run import CWL, Course, check_course, cleared_at, courses
from acmserve.bench.precompute.table import as_report, as_table

TRACE = Trace(tuple(Exchanged(("said",), None, "asked") for _ in range(4)), {})


def turn(computed: int, seconds: float, *, evicted: int = 0, precompute: int = 0, prompt: int = 5000) -> Turn:
    receipt = {
        "prompt_tokens": prompt,
        "kept_tokens": prompt - computed,
        "moved_tokens": 0,
        "computed_tokens": computed,
        "precomputed_tokens": precompute,
    }
    return Turn(receipt, seconds, [], evicted)


def course(**changed: Any) -> Course:
    turns = [
        turn(200, 0.2),
        turn(210, 0.3),
        turn(220, 0.4, evicted=2000, precompute=3000),
        turn(3000, 2.0, evicted=2000),
    ]
    counters = {"precomputed_tokens": 4000.0, "precomputed_used_tokens": 3000.0}
    made = Course("exact, predict", {}, turns, [True, True, True, True], precompute=counters)
    for name, value in changed.items():
        setattr(made, name, value)
    return made


def report_of(made: Course, scale: float = 1, agreed: Agreement | None = None) -> dict[str, Any]:
    return as_report("tiny", CWL, TRACE, [made], agreed or Agreement(120, 2, 2), scale)


@pytest.mark.parametrize(("prompts", "index"), [((5,), 0), ((5, 6), 0), ((5, 6, 3), 2), ((9, 3, 4), 1)])
def test_a_clearing_inside_a_loop_counts_for_the_completion_whose_prompt_got_shorter(
    prompts: tuple[int, ...], index: int
) -> None:
    """Else a stock engine is sent what was shown afterwards in place of what was asked."""
    assert cleared_at([turn(1, 0.1, prompt=prompt) for prompt in prompts]) == index


def test_of_rounds_in_step_each_wave_and_each_turn_counts_with_its_median() -> None:
    slow = Round([1.0, 9.0], [0.1, 0.2, 0.3, 9.0], 4.0, 0)
    rounds = [Round([1.0, 3.0], [0.1, 0.2, 0.3, 0.4], 2.0, 0), slow, Round([1.0, 3.0], [0.1, 0.2, 0.3, 0.4], 3.0, 7)]
    row = as_row(rounds)
    assert (row["turns_per_second"], row["turns_per_second_by_round"]) == (1.0, [1.0, 0.4, 1.0])
    assert (row["median_seconds"], row["p99_seconds"]) == (0.25, 0.4)
    assert (row["cpu_seconds_per_turn"], row["precomputed_tokens"], row["num_turns"]) == (0.75, 7, 4)
    assert row["p99_seconds_by_round"] == [0.4, 9.0, 0.4]
    faster = row | {"turns_per_second": 1.02, "p99_seconds": 0.2}
    ratio = {"mean": 0.98, "interval": [0.95, 1.01]}
    modes = {"off": row, "predict": faster}
    report = {"gate": as_gate([]), "num_sessions": 4, "num_rounds": 3, "modes": modes, "wave_ratio": ratio}
    first, second = foreground_table(report)[-2:]
    assert first.startswith("predict: +2.0% turns a second, -50.0% p99")
    assert second == "A wave under predict takes 0.980 of the time of one under off (95 %: 0.950 to 1.010)."
    red = report | {"gate": as_gate(["no"])}
    assert foreground_table(red) == ["GATE RED, so nothing is reported:", "  no"]


def test_waves_are_compared_in_pairs_and_turns_in_order_of_time() -> None:
    rounds = [[Round([seconds, 4 * seconds], [], 0.0, 0)] for seconds in (1.0, 0.5)]
    assert wave_ratio(*rounds) == {"mean": 0.5, "interval": [0.5, 0.5]}
    assert in_order([[0.4, 2.0], [0.3, 1.0], [0.5, 3.0]]) == [0.3, 0.4, 0.5, 1.0, 2.0, 3.0]


def test_turns_behind_an_eviction_are_told_apart() -> None:
    [row] = report_of(course(), 0.5)["courses"]
    assert (row["num_evictions"], row["num_candidates"], row["precomputed_used_share"]) == (2, 1, 0.75)
    assert row["num_ready"] == 1
    assert row["eviction_seconds"] == {"median": 1.2, "p90": 2.0}
    assert row["plain_seconds"] == {"median": 0.3, "p90": 0.3}
    assert row["eviction_new_tokens"] == {"median": 2000, "p90": 2000}
    assert row["eviction_over_append"] is None, "one append is no line"
    assert row["eviction_old_tokens"] == {"median": 500, "p90": 1000}
    table = "\n".join(as_table(report_of(course(), 0.5)))
    assert "0.25 to 2.5 s" in table
    assert "75%" in table


def test_evictions_are_held_against_a_line_through_the_appends() -> None:
    """0.1 s and 1 ms a token; one append was slow. The eviction brings 1,000 tokens and takes twice as long."""
    appends = [(5000, 0.1), (5100, 0.2), (5200, 0.2), (5300, 0.2), (5700, 0.5), (5800, 9.0), (5900, 0.2)]
    turns = [turn(100, seconds, prompt=prompt) for prompt, seconds in appends]
    turns.append(turn(1000, 2.2, prompt=4900, evicted=2000))
    [row] = report_of(course(turns=turns, rests=[True] * len(turns)))["courses"]
    assert row["append_line"] == pytest.approx({"fixed_seconds": 0.1, "seconds_per_token": 0.001})
    assert row["eviction_over_append"] == {"median": 2.0, "p90": 2.0}


def test_a_later_step_of_a_loop_is_no_append_behind_a_pause() -> None:
    [row] = report_of(course(rests=[True, False, True, True]))["courses"]
    assert row["plain_seconds"] is None


@pytest.mark.parametrize(
    ("turns", "says"),
    [
        ([turn(1, 1.0)], "1 of 4 turns"),
        ([*[turn(1, 1.0)] * 3, turn(1, 1.0, prompt=6001)], "the budget is 6000"),
        ([*[turn(1, 1.0)] * 3, turn(1, 1.0, precompute=5000)], "does not add up"),
    ],
)
def test_a_course_that_went_wrong_is_not_reported(turns: list[Turn], says: str) -> None:
    made = course(turns=turns)
    made.failures = check_course(made, TRACE, CWL)
    assert says in made.failures[0]
    report = report_of(made)
    assert report["courses"] == []
    assert says in as_table(report)[1]


def test_the_courses_differ_in_what_is_compared() -> None:
    assert [made.acm for made in courses()] == [
        {"fidelity": "exact", "precompute": "predict"},
        {"fidelity": "exact", "precompute": "off"},
        {"fidelity": "reuse", "precompute": "off"},
    ]


def test_a_token_that_stock_would_not_have_said_ends_the_report_unless_it_is_a_tie() -> None:
    ours = [Said((1, 2, 3), (5.0, 4.0, 0.0002)), Said((7,), (1.0,))]
    theirs = [Said((1, 9, 4), (5.0, 0.1, 0.0004)), Said((7,), (1.0,))]
    agreed = compare(ours, theirs)
    assert agreed == Agreement(4, 2, 1)
    report = report_of(course(), agreed=agreed)
    assert (report["courses"], report["gate"]["failures"]) == ([], ["exact, predict: 1 of 4 tokens are not stock's"])
    assert "2 of 120, 2 of them" in "\n".join(as_table(report_of(course())))
    with pytest.raises(ValueError, match="zip"):
        compare(ours, [*theirs[:1], Said((7, 8), (1.0, 1.0))])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--answers", "3", "--plot", "p.png"], "--answers and --foreground have no plot"),
        (["--answers", "3", "--foreground", "5"], "not allowed with"),
        (["--tasks", "0"], "'0' is not a positive number"),
    ],
)
def test_wrong_usage_names_the_bad_option(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert says in capsys.readouterr().err
