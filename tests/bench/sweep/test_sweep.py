"""`bench sweep`: joined conversations, planned counts beside recorded ones, rows, gate, tables and its sections."""

from __future__ import annotations

import json
import platform
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from acmserve.bench.agent.plain_prompt import PromptWriter
from acmserve.bench.agent.recording import RecordedStep, Recording
from acmserve.bench.agent.result_table import told_by
from acmserve.bench.agent.scripted_agent import make_trace
from acmserve.bench.budget.costs import written_tokens
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.report.ledger import read_ledger
from acmserve.bench.report.page import sections_of
from acmserve.bench.report.sections.agents import AGENTS
from acmserve.bench.report.sections.sweep import SWEEPS
from acmserve.bench.sweep.computed import BLOCK_TOKENS, count_computed
from acmserve.bench.sweep.conversations import SweptTasks, of_recordings, of_trace
from acmserve.bench.sweep.cwl_claims import (
    OUTPUT,
    budget_costs,
    range_told,
    summary_sizes,
    sweep_costs,
    verdict,
    with_answers_told,
)
from acmserve.bench.sweep.main import _parser
from acmserve.bench.sweep.message_tokens import MessageTokens
from acmserve.bench.sweep.rows import BUDGETS, check_rows, plan_rows, ways_of
from acmserve.bench.sweep.table import BUDGET_REPEATS, BUDGET_TOKENS, knows_answers
from acmserve.bench.trace.plan import Wanted, digest, plan_parts, record_sessions
from acmserve.bench.trace.prompts import Limits
from acmserve.context.transcript.outline import Outline
from acmserve.models.smollm2 import TOOLS_TEMPLATE
from acmserve.server.models.tokenizer import ServedTokenizer
from tests.bench.trace.test_policy import WORDS
from tests.bench.trace.test_repeats import recording_of
from tests.support.docs.figures import read_result

CPU_BLOCK_TOKENS = 128
SAMPLED_TOKENS = 1
"""What an engine of ours keeps token by token has sampled answers behind it, which no plan knows."""
SMALL = (3_000, 6_000)
Rows = list[dict[str, Any]]


def messages_of(recording: Recording) -> list[Any]:
    return [message for step in recording.steps for message in step.new]


def test_one_session_has_all_steps_of_all_tasks_and_one_system_message() -> None:
    one, other = recording_of("a", "b"), recording_of("a")
    other = replace(other, steps=(*other.steps[:-1], replace(other.steps[-1], fleeting=({"role": "user"},))))
    joined = of_recordings([one, other])
    assert joined.alone == (one, other)
    steps = joined.together.steps
    assert len(steps) == len(one.steps) + len(other.steps)
    roles = [[message["role"] for message in step.new] for step in steps]
    called = ["assistant", "tool"]
    assert roles == [["system", "user"], called, called, ["assistant", "user"], called]
    assert steps[-1].fleeting == other.steps[-1].fleeting
    outline = Outline(messages_of(joined.together))
    assert [outline.results(use) for use in outline.uses()] == [[3], [5], [9]]


def test_tools_stand_once_and_ids_of_calls_stay_apart() -> None:
    tool = {"type": "function", "function": {"name": "read"}}
    tasks = [replace(recording_of("a"), tools=(tool,)) for _ in range(3)]
    together = of_recordings(tasks).together
    assert together.tools == (tool,)
    ids = [call["id"] for message in messages_of(together) for call in message.get("tool_calls") or ()]
    assert len(set(ids)) == len(ids) == 3
    assert tasks[0] == replace(recording_of("a"), tools=(tool,)), "what is joined stays as it was"


def test_the_scripted_tasks_alone_have_the_turns_of_the_whole() -> None:
    tasks = of_trace(make_trace(read_library(), WORDS, 3))
    assert sum(len(one.steps) for one in tasks.alone) == len(tasks.together.steps)
    assert len(tasks.alone) == 3


def test_appends_and_edits_are_counted_as_servers_compute_them() -> None:
    draw = np.random.default_rng(3)
    text = [int(token) for token in draw.integers(0, 50_000, 2_000)]
    first, second = tuple(text[:1_000]), tuple(text[:1_100])
    edited = (*text[:200], *text[400:1_200])
    counts = list(count_computed([first, second, second, edited]))
    assert counts[0] == {"stock": 1_000, "exact": 1_000, "reuse": 1_000}
    assert counts[1] == {"stock": 1_100 - 1_000 // BLOCK_TOKENS * BLOCK_TOKENS, "exact": 100, "reuse": 100}
    # The last token is always computed, and with it, in whole blocks, what stands beside it.
    assert counts[2] == {"stock": 1_100 - 1_099 // BLOCK_TOKENS * BLOCK_TOKENS, "exact": 1, "reuse": 1}
    assert counts[3] == {"stock": 1_000 - 200 // BLOCK_TOKENS * BLOCK_TOKENS, "exact": 800, "reuse": 100}


def test_a_prefix_of_any_earlier_prompt_is_known_to_stock() -> None:
    text, other = tuple(range(320)), tuple(range(1_000, 1_320))
    assert [one["stock"] for one in count_computed([text, other, (*text, 7)])] == [320, 320, 1]


def test_planned_counts_are_those_that_servers_were_seen_to_compute(smollm2_folder: Path) -> None:
    """Of the recorded run of `bench trace`, turn by turn: 24 turns on three servers, with edits under two policies."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    served, library = ServedTokenizer(tokenizer), read_library()
    writer = PromptWriter(MessageTokens(tokenizer), TOOLS_TEMPLATE.read_text(encoding="utf-8"))
    wanted = Wanted(("cwl", "recency@1"), 1, Limits(6_000, 3_600), 11, 12)
    parts = plan_parts(wanted, record_sessions(make_trace(library, served, 8), 1), writer, served)
    recorded = read_result("trace")
    is_same = recorded["machine"]["python"] == platform.python_version()
    is_same = is_same and make_trace(library, served).digest == read_result("budget")["trace"]["digest"]
    if is_same:
        assert digest(parts) == recorded["trace"]["digest"], "messages have other tokens one by one"
    seen = {(row["policy"], row["server"]): row["turns"][0]["computed_tokens"] for row in recorded["rows"]}
    for part in parts:
        (session,) = part.repetitions[0]
        planned = list(count_computed((prompt.tokens for prompt in session.prompts), CPU_BLOCK_TOKENS))[1:]
        assert len(planned) == 12
        if is_same:
            for server in ("stock", "exact", "reuse"):
                counts = [one[server] for one in planned]
                less = [count - computed for count, computed in zip(counts, seen[part.policy, server], strict=True)]
                most = 0 if server == "stock" else SAMPLED_TOKENS
                assert max(map(abs, less)) <= most, (part.policy, server)


@pytest.fixture(scope="module")
def rows() -> Rows:
    tasks = of_trace(make_trace(read_library(), WORDS, 3))
    said: list[str] = []
    found = list(plan_rows(tasks, ways_of(SMALL), PromptWriter(WORDS), WORDS, said.append))
    assert len(said) == len(found) == 2 + 3 * len(SMALL) + 1, "the larger budget has a larger summary, too"
    return found


def test_every_row_keeps_to_its_budget_and_has_all_calls(rows: Rows) -> None:
    assert check_rows(rows) == []
    alone, whole, *budgeted = rows
    assert (alone["num_sessions"], whole["num_sessions"]) == (3, 1)
    assert whole["exact_tokens"] == whole["reuse_tokens"] == whole["max_prompt_tokens"], "each token once"
    assert alone["max_prompt_tokens"] < whole["max_prompt_tokens"]
    for row in budgeted:
        assert row["reuse_tokens"] <= row["exact_tokens"] <= row["stock_tokens"] < row["prompt_tokens"]
        repeats = row["num_repeats_shown"] + row["num_reexplored"]
        assert repeats == whole["num_repeats_shown"] > 0
        assert row["num_edits"] > 0
        assert (row["num_summaries"] > 0) is (row["summary_tokens"] > 0) is (row["policy"] == "compaction")
        assert row["answer_tokens"] == whole["answer_tokens"] > 0, "the agent says the same in every way"
    # The smaller the budget, the more is explored again.
    for policy in ("cwl", "recency"):
        again = [row["num_reexplored"] for row in budgeted if row["policy"] == policy]
        assert all(small >= large for small, large in pairwise(again))


@pytest.mark.parametrize(
    ("row", "change", "says"),
    [
        (2, {"max_prompt_tokens": 3_001}, "cwl, 3,000 tokens: a prompt has 3,001"),
        (2, {"max_tokens": 90_000}, "cwl, 90,000 tokens: without a budget no prompt has more than"),
        (3, {"num_calls": 1}, "recency, 3,000 tokens: 1 calls, without a budget"),
        (2, {"answer_tokens": 1}, "cwl, 3,000 tokens: 1 tokens answered, else "),
        (1, {"num_reexplored": 1}, "none, 0 tokens: something was taken out where no policy is"),
    ],
)
def test_a_wrong_row_is_red(rows: Rows, row: int, change: dict[str, int], says: str) -> None:
    """Negative controls."""
    changed = [dict(one) | (change if number == row else {}) for number, one in enumerate(rows)]
    (failure,) = check_rows(changed)
    assert failure.startswith(says)


def report_of(rows: Rows) -> dict[str, Any]:
    return {
        "gate": {"green": True, "failures": []},
        "num_tasks": 3,
        "budgets": list(SMALL),
        "prices": {"write": 1.25, "read": 0.1, "output": 5.0, "base": 1.0},
        "rows": rows,
    }


def test_the_tables_have_a_line_for_each_row(rows: Rows) -> None:
    report = report_of(rows)
    tokens, repeats = list(BUDGET_TOKENS.rows(report)), list(BUDGET_REPEATS.rows(report))
    assert [line[:2] for line in tokens] == [line[:2] for line in repeats]
    assert [line[:2] for line in tokens[:3]] == [
        ["none", "a session for each task"],
        ["none", "the whole conversation"],
        ["3,000", "CWL in batches"],
    ]
    assert tokens[1][-3:] == ["1.00", "1.00", "1.00"], "beside itself"
    for line in tokens[2:]:
        before, after = float(line[-3]), float(line[-1])
        assert after == pytest.approx(before, abs=0.005) or (after > before) is (before < 1), "nearer to no budget"
    assert [line[1] for line in tokens if "summary" in line[1]] == [
        f"a summary by the client, of {size} tokens" for size in ("300", "300", "1,000")
    ]
    older = [{name: value for name, value in row.items() if name != "answer_tokens"} for row in rows]
    assert {line[-1] for line in BUDGET_TOKENS.rows(report_of(older))} == {"not told"}
    assert "gate green" in told_by(BUDGET_TOKENS, BUDGET_REPEATS)(report)[-1]


@pytest.mark.parametrize("number", range(len(SWEEPS)))
def test_a_section_stands_on_the_page_once_its_sweep_was_made(rows: Rows, number: int, tmp_path: Path) -> None:
    section = SWEEPS[number]
    assert sections_of([section], tmp_path, read_ledger(tmp_path)) == []
    (tmp_path / f"{section.files[0]}.json").write_text(json.dumps(report_of(rows)), encoding="utf-8")
    (tmp_path / "budget.json").write_text(json.dumps(read_result("budget")), encoding="utf-8")
    shown = "\n".join(sections_of([section], tmp_path, read_ledger(tmp_path)))
    assert f"With CWL and 3,000 it is {rows[2]['exact_tokens']:,}, and {rows[2]['reuse_tokens']:,}" in shown
    assert shown.count("re-explorations there.") == len(SMALL)
    assert "CWL's paper tells 20 to 70 % less cost than its baseline" in shown
    (batched,) = budget_costs(read_result("budget"), "cwl-batched")
    num = next(run["num_summaries"] for run in read_result("budget")["runs"] if run["name"] == "compaction")
    assert f"Under [Budgets](#budgets) CWL costs {batched.below_compaction} than compaction, whose {num} summ" in shown


def test_a_claim_is_reproduced_or_refuted_by_the_numbers() -> None:
    """By hand, of 1,000 tokens without a budget, all computed: 1,250. CWL has 800, and a summary writes 10 of 500."""
    counts = {"num_sessions": 1, "summary_tokens": 0}
    made = [
        counts
        | {"policy": policy, "max_tokens": most, "exact_tokens": num, "prompt_tokens": num, "summary_tokens": wrote}
        for policy, most, num, wrote in (
            *(("none", 0, 1_000, 0), ("cwl", 300, 800, 0), ("compaction", 300, 500, 10)),
            *(("cwl", 600, 810, 0), ("compaction", 600, 1_000, 200)),
        )
    ]
    first, second = sweep_costs(report_of(made))
    assert (first.name, first.below_baseline, first.below_compaction) == ("at 300", "20 % less", "48 % more")
    assert (second.below_baseline, second.below_compaction) == ("19 % less", "55 % less")
    assert verdict({one.name: one.is_below_baseline for one in (first, second)}) == "reproduced at 300, refuted at 600"
    assert verdict({one.name: one.is_below_compaction for one in (first,)}) == "refuted"
    assert verdict({"at 600": second.is_below_compaction}) == "reproduced"
    assert range_told([second, first]) == "55 % less to 48 % more"
    assert range_told([first, first]) == "48 to 48 % more"
    assert with_answers_told(sweep_costs(report_of(made), with_answers=True)) == OUTPUT


def test_what_the_agent_writes_makes_a_saving_smaller() -> None:
    """By hand: 1,000 tokens written are 5,000 more on every side, so 20 % of 1,250 is 4 % of 6,250.

    The larger summary costs 300 tokens more to write, so 1,500 more. It is told apart from the smaller one.
    """
    counts = {"num_sessions": 1, "summary_tokens": 0, "answer_tokens": 1_000}
    small, large = {"max_summary_tokens": 300}, {"max_summary_tokens": 1_000}
    made = [
        counts | {"policy": policy, "max_tokens": most, "exact_tokens": num, "prompt_tokens": num} | more
        for policy, most, num, more in (
            *(("none", 0, 1_000, {}), ("cwl", 300, 800, {})),
            ("compaction", 300, 500, small | {"summary_tokens": 10}),
            ("compaction", 300, 500, large | {"summary_tokens": 310}),
        )
    ]
    report = report_of(made)
    assert summary_sizes(report) == [300, 1_000]
    (alone,), (whole,) = (sweep_costs(report, with_answers=one) for one in (False, True))
    assert (alone.below_baseline, alone.is_below_baseline) == ("20 % less", True)
    assert (whole.below_baseline, whole.is_below_baseline) == ("4 % less", False)
    (large_alone,) = sweep_costs(report, 1_000)
    assert (alone.below_compaction, large_alone.below_compaction) == ("48 % more", "54 % less")
    assert "4 % less than no budget: refuted." in with_answers_told([whole])
    assert sweep_costs(report, 2_000) == []


@pytest.mark.parametrize(("budget", "sizes"), [(1_500, [300]), (5_000, [300, 1_000]), (50_000, [300, 1_000, 2_000])])
def test_summaries_of_several_sizes_are_planned_where_they_leave_room(budget: int, sizes: list[int]) -> None:
    ways = [way for way in ways_of((budget,)) if way.policy == "compaction"]
    assert [way.summary_tokens for way in ways] == sizes
    assert {way.summary_tokens for way in ways_of((budget,)) if way.policy != "compaction"} == {0}


def test_a_larger_summary_has_more_words(rows: Rows) -> None:
    small, large = (row for row in rows if row["policy"] == "compaction" and row["max_tokens"] == SMALL[1])
    assert (small["max_summary_tokens"], large["max_summary_tokens"]) == (300, 1_000)
    mean, more = (row["summary_tokens"] / row["num_summaries"] for row in (small, large))
    assert mean <= 300 < more <= 1_000


def test_budgets_and_long_sessions_say_why_they_differ() -> None:
    """Each names the other's result, and says whether what the agent writes is in its costs."""
    reports = {name: read_result(name) for name in ("budget", "sweep", "sweep-real")}
    (budgets,) = (one for one in AGENTS if one.title == "Budgets")
    has_answers = {section.title: knows_answers(reports[section.files[0]]) for section in SWEEPS}
    has_answers[budgets.title] = written_tokens(reports["budget"]) is not None
    for section in (budgets, *SWEEPS):
        assert callable(section.answer)
        told = section.answer(reports)
        notes = " ".join(note(reports) if callable(note) else note for note in section.notes)
        assert len(re.findall("reproduced|refuted", told)) >= 2, "beside no budget, and beside a summary"
        assert ("What the agent writes is in no cost" in told) is not has_answers[section.title]
        assert ("Summaries are invented" in notes) is (section is not budgets)
        assert ("no model has summarized anything" in notes) is (section is budgets)
        assert ("](#many-tasks-in-one-session)" in notes) is (section is budgets)
        assert ("](#budgets)" in notes) is (section is not budgets)


def test_budgets_are_read_once_and_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert _parser().parse_args([]).budgets == BUDGETS
    assert _parser().parse_args(["--budgets", "9000, 50,9000"]).budgets == (50, 9000)
    with pytest.raises(SystemExit):
        _parser().parse_args(["--budgets", "50k"])
    assert "50k" in capsys.readouterr().err


def test_no_session_is_changed_by_being_planned() -> None:
    tasks = of_recordings([recording_of("a", "b", "a"), recording_of("a")])
    before = SweptTasks(tasks.alone, Recording("all tasks", (), tuple(map(_copied, tasks.together.steps))))
    list(plan_rows(tasks, ways_of((1_500,)), PromptWriter(WORDS), WORDS, lambda line: None))
    assert tasks == before


def _copied(step: RecordedStep) -> RecordedStep:
    return replace(step, new=tuple(json.loads(json.dumps(step.new))))
