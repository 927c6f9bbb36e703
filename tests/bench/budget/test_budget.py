"""`bench budget` without an engine: the rules of its runs, and what it reports."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from acmserve.bench.agent.conversation import ConversationRun, ConversationTurn
from acmserve.bench.agent.result_table import told_by
from acmserve.bench.agent.scripted_agent import Exchanged, Trace, make_trace
from acmserve.bench.budget.costs import COSTS, cost_of
from acmserve.bench.budget.main import TREATMENTS, as_report
from acmserve.bench.budget.runs import (
    MOST_COMPUTED_OF_SUMMARY,
    MOST_MORE_BY_COMPACTION,
    check_budget_run,
    check_compaction,
    check_pairs,
    computed_per_new,
    make_hybrid_runs,
    make_runs,
    new_tokens,
    written_by_agent,
)
from acmserve.bench.eval.prices import PriceRatios
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.harness.options import as_json
from acmserve.models.smollm2 import TOOLS_TEMPLATE
from acmserve.server.models.tokenizer import ServedTokenizer

NEW = [500, 300, 200]
as_table = told_by(TREATMENTS)
TRACE = Trace(tuple(Exchanged(("said",), None) for _ in range(3)), {})
RECORDED = json.loads((Path(__file__).parents[3] / "benchmarks/results/budget.json").read_text(encoding="utf-8"))


def made_turn(prompt: int, computed: int, moved: int = 0) -> ConversationTurn:
    kept = prompt - computed - moved
    counts = {"prompt_tokens": prompt, "kept_tokens": kept, "moved_tokens": moved, "computed_tokens": computed}
    return ConversationTurn(counts, seconds=0.1)


def good_run(name: str = "cwl-moves") -> ConversationRun:
    """Three turns with moves. The last one evicts 400 tokens and leaves 50 of a note."""
    run = next(run for run in make_runs() if run.name == name)
    run.turns = [
        made_turn(prompt=500, computed=500),
        made_turn(prompt=800, computed=300),
        replace(made_turn(prompt=650, computed=260, moved=200), evicted=400, markers=50),
    ]
    return run


def test_a_good_run_passes_and_says_what_it_costs() -> None:
    good, plain = good_run(), good_run("uncapped")
    assert check_budget_run(good, TRACE, NEW) == []
    assert computed_per_new(good, NEW) == pytest.approx(260 / 250)
    report = as_report(TRACE, [plain, good], NEW, num_written=15)
    assert report["runs"][1]["total_computed_tokens"] == 1060
    assert report["runs"][1]["turns"]["evicted_tokens"] == [0, 0, 400]
    assert "seconds" not in report["runs"][1]["turns"]
    assert "gate green" in as_table(report)[-1]
    assert json.loads(as_json(report)) == report


@pytest.mark.parametrize(
    ("number", "changed", "reason"),
    [
        (1, {"receipt": made_turn(900, 400).receipt}, "400 new tokens, the trace has 300"),
        (2, {"receipt": made_turn(6_001, 200).receipt}, "the budget is 6000"),
        (2, {"receipt": made_turn(650, 301).receipt}, "1.20 tokens computed for each new one"),
        (2, {"receipt": made_turn(650, 200).receipt, "summary": (100, 20)}, "1.28 tokens computed for each new one"),
    ],
)
def test_gates_trip_on_bad_numbers(number: int, changed: dict[str, Any], reason: str) -> None:
    bad = good_run()
    bad.turns[number] = replace(bad.turns[number], **changed)
    report = as_report(TRACE, [bad], NEW, num_written=15)
    assert any(reason in failure for failure in report["gate"]["failures"]), report["gate"]
    assert report["runs"] == []
    assert as_table(report)[0] == "GATE RED, so nothing is reported:"


def compacted(summary: tuple[int, int], computed: int) -> list[ConversationRun]:
    """No budget, which computes 1,000 tokens, and compaction, which wrote one summary."""
    runs = [good_run("uncapped"), good_run("compaction")]
    runs[0].turns = [made_turn(500, 500), made_turn(800, 300), made_turn(1_000, 200)]
    runs[1].turns = [*runs[0].turns[:2], replace(made_turn(1_000, computed), summary=summary)]
    return runs


def test_compaction_reads_its_summaries_out_of_the_cache() -> None:
    """The controls are one token more in a summary, and one more in all."""
    assert check_compaction(compacted((200, 300), 499)) == []
    assert check_compaction(compacted((200, 300), 499)[1:]) == []
    [failure] = check_compaction(compacted((201, 299), 499))
    assert "201 tokens computed for a summary, above 200" in failure
    report = as_report(TRACE, compacted((200, 300), 500), NEW, num_written=15)
    assert any("compaction: +80.0% beside no budget" in failure for failure in report["gate"]["failures"])


def test_the_recorded_compaction_is_below_its_bound() -> None:
    spent = {
        run["name"]: run["total_computed_tokens"] + sum(run["turns"]["summary_tokens"]) for run in RECORDED["runs"]
    }
    assert spent["compaction"] < (1 + MOST_MORE_BY_COMPACTION) * spent["uncapped"]
    [compaction] = [run for run in RECORDED["runs"] if run["name"] == "compaction"]
    assert 0 < compaction["summary_computed_tokens"] <= MOST_COMPUTED_OF_SUMMARY * compaction["num_summaries"]


def test_runs_differ_in_one_thing_at_a_time() -> None:
    cwl = [run.acm for run in make_runs() if run.name.startswith("cwl")]
    for one, other in pairwise(cwl):
        watermarks = [acm["budget"]["low_watermark"] for acm in (one, other)]
        assert (one["fidelity"] != other["fidelity"]) + (watermarks[0] != watermarks[1]) == 1


def test_hybrid_runs_are_compared_on_the_same_prompts() -> None:
    run, other = make_hybrid_runs()[2], make_hybrid_runs("-without")[-1]
    run.turns = [made_turn(500, 500), made_turn(800, 200)]
    other.turns = [made_turn(500, 500), made_turn(800, 800)]
    assert {run.acm["fidelity"], other.acm["fidelity"]} == {"exact"}
    assert check_pairs([run], [other]) == []
    other.turns[1] = made_turn(801, 800)
    assert "its prompts are not those of" in check_pairs([run], [other])[0]
    other.turns[1] = made_turn(800, 100)
    assert "more is computed than without boundaries" in check_pairs([run], [other])[0]


def test_new_tokens_are_those_of_the_recorded_trace(smollm2_folder: Path) -> None:
    """They need no server, so the recorded conversation can be made again where the standard library is the same."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    trace = make_trace(read_library(), ServedTokenizer(tokenizer))
    new = new_tokens(trace, tokenizer, TOOLS_TEMPLATE.read_text(encoding="utf-8"))
    assert len(new) == trace.num_turns
    if trace.digest == RECORDED["trace"]["digest"]:
        assert new == RECORDED["trace"]["new_tokens"]
    assert 0 < written_by_agent(trace, tokenizer) < sum(new), "results and instructions are not the agent's"


def test_the_recorded_report_reads() -> None:
    table = as_table(RECORDED)
    for run in RECORDED["runs"]:
        names = ("total_computed_tokens", "summary_computed_tokens", "summary_completion_tokens")
        computed = f"{sum(run[name] for name in names):,}"
        assert any(run["title"] in line and computed in line for line in table), run["name"]


def test_costs_follow_from_the_counts_and_the_prices() -> None:
    run = {"total_computed_tokens": 100, "summary_computed_tokens": 20, "total_prompt_tokens": 1_000}
    run |= {"summary_prompt_tokens": 120, "summary_completion_tokens": 10}
    assert cost_of(run, PriceRatios()) == pytest.approx((1.25 * 120 + 0.1 * 1_000 + 5 * 10) / 1e6)
    assert cost_of(run, PriceRatios(write=1, read=1, output=0, base=2)) == pytest.approx(2 * 1_120 / 1e6)
    assert cost_of(run, PriceRatios(), 30) == pytest.approx((1.25 * 120 + 0.1 * 1_000 + 5 * 40) / 1e6)


def test_costs_stand_beside_no_budget_and_beside_compaction() -> None:
    """By hand: 225, 180 and 90. Where reading and writing out are free, it is 125, 100 and 75.

    With 15 tokens that the agent writes, each has 75 more: 300, 255 and 165. So shares are smaller.
    """

    def made(name: str, computed: int, prompts: int, *summary: int) -> dict[str, Any]:
        names = ("summary_computed_tokens", "summary_prompt_tokens", "summary_completion_tokens")
        told = {"name": name, "title": name, "total_computed_tokens": computed, "total_prompt_tokens": prompts}
        return told | dict(zip(names, summary or (0, 0, 0), strict=True))

    runs = [made("uncapped", 100, 1_100), made("compaction", 60, 260, 20, 120, 10), made("cwl-batched", 60, 210)]
    inputs = [["", "+25 %"], ["-20 %", ""], ["-60 %", "-50 %"]]
    assert [row[-4:] for row in COSTS.rows({"runs": runs})] == [[*row, "not told", "not told"] for row in inputs]
    *_, free = COSTS.rows({"runs": runs, "prices": {"read": 0.0, "output": 0.0}})
    assert free[-3] == "-25 %"
    told = COSTS.rows({"runs": runs, "trace": {"written_tokens": 15}})
    bills = [["", "+18 %"], ["-15 %", ""], ["-45 %", "-35 %"]]
    assert [row[-4:] for row in told] == [[*row, *bill] for row, bill in zip(inputs, bills, strict=True)]
