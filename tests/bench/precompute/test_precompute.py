"""The numbers of `bench precompute`, without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.agent.conversation import ConversationRun, ConversationTurn
from acmserve.bench.agent.estimates import student_ratio_interval
from acmserve.bench.agent.result_table import told_by
from acmserve.bench.agent.scripted_agent import Exchanged, Trace
from acmserve.bench.harness.options import as_gate
from acmserve.bench.models.witness import Agreement, Said, compare
from acmserve.bench.precompute.foreground import MODES_TABLE, ForegroundRound, as_row, wave_ratio
from acmserve.bench.precompute.main import main
from acmserve.bench.precompute.runs import CLEARING, CWL, EXACT, PREDICT, make_runs, pauses_of, sleeper
from acmserve.bench.precompute.table import AGREEMENT, EVICTIONS, ORDINARY, as_report
from acmserve.bench.precompute.turn_statistics import compare_ordinary_turns
from acmserve.bench.report.sections.renewed import renewed

TRACE = Trace(tuple(Exchanged(("said",), None, "asked") for _ in range(4)), {})
as_table = told_by(EVICTIONS, ORDINARY, AGREEMENT)
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def recorded(name: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return report


def turn(
    computed: int, seconds: float, *, evicted: int = 0, precomputed: int = 0, prompt: int = 5000
) -> ConversationTurn:
    receipt = {
        "prompt_tokens": prompt,
        "kept_tokens": prompt - computed,
        "moved_tokens": 0,
        "computed_tokens": computed,
        "precomputed_tokens": precomputed,
    }
    return ConversationTurn(receipt, seconds, evicted)


def made_run(turns: list[ConversationTurn] | None = None) -> ConversationRun:
    counters = {"precomputed_tokens": 4000.0, "precomputed_used_tokens": 3000.0}
    four = [
        turn(200, 0.2),
        turn(210, 0.3),
        turn(220, 0.4, evicted=2000, precomputed=3000),
        turn(3000, 2.0, evicted=2000),
    ]
    return ConversationRun(PREDICT, {}, turns=turns or four, counters=counters)


def report_of(run: ConversationRun, agreed: Agreement | None = None) -> dict[str, Any]:
    return as_report("tiny", CWL, TRACE, [run], agreed or Agreement(120, 2, 2))


def test_the_p99_is_that_of_all_first_tokens_and_not_of_medians_over_rounds() -> None:
    """One slow turn in a hundred of one round: medians over rounds do not know it."""
    slow = [0.1] * 98 + [8.0, 9.0]
    rounds = [ForegroundRound([1.0, 3.0], firsts, 2.0, 7) for firsts in ([0.1] * 100, slow, [0.1] * 100)]
    row = as_row(rounds)
    assert (row["p99_seconds"], row["p99_seconds_by_round"]) == (0.1, [0.1, 8.0, 0.1])
    assert as_row([rounds[1]] * 3)["p99_seconds"] == 8.0
    assert (row["turns_per_second"], row["cpu_seconds_per_turn"]) == (25.0, 0.02)
    assert (row["precomputed_tokens"], row["num_turns"]) == (21, 100)


def test_the_modes_are_compared_round_by_round() -> None:
    """Waves of one round drift together, so that many of them tell no more than their round."""
    off, on = ([ForegroundRound([seconds, 4 * seconds], [seconds] * 4, 1.0, 0)] for seconds in (1.0, 0.5))
    modes = {"off": as_row(off), "predict": as_row(on)}
    ratio = wave_ratio(modes)
    assert ratio == {"mean": 0.5, "interval": None}
    rates = ([8.0, 8.0, 8.0], [10.0, 8.0, 6.4])
    drifting = {name: {"turns_per_second_by_round": rate} for name, rate in zip(modes, rates, strict=True)}
    found = wave_ratio(drifting)
    assert found["mean"] == 1.0
    assert found["interval"] == pytest.approx(student_ratio_interval([0.8, 1.0, 1.25]), abs=1e-4)
    report = {"gate": as_gate([]), "num_sessions": 4, "num_rounds": 1, "modes": modes, "wave_ratio": ratio}
    rows = [line.split() for line in told_by(MODES_TABLE)(report)]
    assert ["predict", "1.60", "0.50", "to", "0.50", "s", "0.250", "s"] in rows
    red = report | {"gate": as_gate(["no"])}
    assert told_by(MODES_TABLE)(red) == ["GATE RED, so nothing is reported:", "  no"]


def test_turns_behind_an_eviction_are_told_apart() -> None:
    [row] = report_of(made_run())["runs"]
    assert (row["num_evictions"], row["num_candidates"], row["precomputed_used_share"]) == (2, 1, 0.75)
    assert row["num_ready"] == 1
    assert row["eviction_seconds"] == {"median": 1.2, "p90": 2.0}
    assert row["plain_seconds"] == {"median": 0.3, "p90": 0.3}
    assert row["eviction_new_tokens"] == {"median": 2000, "p90": 2000}
    assert row["eviction_over_append"] is None, "one append is no line"
    assert row["eviction_old_tokens"] == {"median": 500, "p90": 1000}
    assert row["total_seconds"] == 2.9
    assert row["precomputed_used_share"] == 0.75


def test_evictions_are_held_against_a_line_through_the_appends() -> None:
    """0.1 s and 1 ms a token. One append was slow. The eviction brings 1,000 tokens and takes twice as long."""
    appends = [(5000, 0.1), (5100, 0.2), (5200, 0.2), (5300, 0.2), (5700, 0.5), (5800, 9.0), (5900, 0.2)]
    turns = [turn(100, seconds, prompt=prompt) for prompt, seconds in appends]
    turns.append(turn(1000, 2.2, prompt=4900, evicted=2000))
    [row] = report_of(made_run(turns))["runs"]
    assert row["append_line"] == pytest.approx({"fixed_seconds": 0.1, "seconds_per_token": 0.001})
    assert row["eviction_over_append"] == {"median": 2.0, "p90": 2.0}


def test_a_later_step_of_a_loop_is_no_append_behind_a_pause() -> None:
    run = made_run()
    run.turns[1].follows_pause = False
    assert report_of(run)["runs"][0]["plain_seconds"] is None


def test_ordinary_turns_compare_those_that_had_the_same_prompt_in_both_runs() -> None:
    """One whose KV was pushed out computes more, and counts. What only one of them edits does not."""
    ours = [turn(1, 9.0), turn(200, 0.3), turn(200, 0.4), turn(200, 5.0, prompt=4000), turn(200, 7.0, evicted=1)]
    theirs = [turn(1, 1.0), turn(210, 0.2), turn(200, 0.4), turn(200, 1.0), turn(200, 1.0)]
    found = compare_ordinary_turns(made_run(ours).columns(), made_run(theirs).columns())
    assert found is not None
    assert (found["num_turns"], found["median_ratio"], found["slower_share"]) == (2, 1.25, 0.5)
    pushed_out = compare_ordinary_turns(
        made_run([*ours, turn(3000, 3.0)]).columns(), made_run([*theirs, turn(200, 1.0)]).columns()
    )
    assert pushed_out is not None
    assert (pushed_out["num_turns"], pushed_out["median_ratio"]) == (3, 1.5)
    assert compare_ordinary_turns(made_run(ours[:1]).columns(), made_run(theirs[:1]).columns()) is None


def test_the_recorded_rounds_are_read() -> None:
    """An older file has an interval of single waves. The page shows that of its rounds."""
    report = recorded("precompute-foreground")
    wrong = report | {"wave_ratio": {"mean": 0.0, "interval": [0.0, 0.0]}}
    for one in (report, wrong):
        assert renewed("precompute-foreground", one)["wave_ratio"] == wave_ratio(report["modes"])
    assert wave_ratio(report["modes"]) != wrong["wave_ratio"]
    assert all(mode["p99_seconds_by_round"] for mode in report["modes"].values())


def test_a_run_that_failed_leaves_no_number() -> None:
    run = made_run()
    run.failures.append("1 of 4 turns")
    report = report_of(run)
    assert report["runs"] == []
    assert as_table(report) == ["GATE RED, so nothing is reported:", "  1 of 4 turns"]


def test_the_runs_differ_in_what_is_compared() -> None:
    assert [(run.name, run.acm["fidelity"], run.acm["precompute"]) for run in make_runs(CWL)] == [
        (PREDICT, "exact", "predict"),
        (EXACT, "exact", "off"),
        ("reuse", "reuse", "off"),
    ]
    assert all("budget" in run.acm and not run.request for run in make_runs(CWL))
    assert all("budget" not in run.acm and "context_management" in run.request for run in make_runs(CLEARING))


def test_a_token_that_stock_would_not_have_said_ends_the_report_unless_it_is_a_tie() -> None:
    ours = [Said((1, 2, 3), (5.0, 4.0, 0.0002)), Said((7,), (1.0,))]
    theirs = [Said((1, 9, 4), (5.0, 0.1, 0.0004)), Said((7,), (1.0,))]
    agreed = compare(ours, theirs)
    assert agreed == Agreement(4, 2, 1)
    report = report_of(made_run(), agreed)
    assert (report["runs"], report["gate"]["failures"]) == ([], ["exact, predict: 1 of 4 tokens are not stock's"])
    assert any(line.split() == ["120", "2", "2"] for line in as_table(report_of(made_run())))
    with pytest.raises(ValueError, match="zip"):
        compare(ours, [*theirs[:1], Said((7, 8), (1.0, 1.0))])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--chains", "3", "--foreground", "5"], "not allowed with"),
        (["--thoughts", "--policy", "cwl"], "not allowed with"),
        (["--tasks", "0"], "'0' is not a positive number"),
    ],
)
def test_wrong_usage_names_the_bad_option(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert says in capsys.readouterr().err


def test_every_run_waits_the_same_pauses() -> None:
    """A run that did not wait would be compared with one whose turns come behind a pause."""
    slept: list[float] = []
    trace = Trace((Exchanged(("one",), None, "asked"), *[Exchanged(("more",), "result")] * 4), {})
    for _ in range(2):
        pause = sleeper(pauses_of(trace), slept.append)
        for _ in range(5):
            pause()
    assert slept[:5] == slept[5:]
    assert all(0.5 <= seconds <= 5 for seconds in slept)
    assert slept[0] == 5, "a user takes longer than that"
    assert len(set(slept)) == 5
