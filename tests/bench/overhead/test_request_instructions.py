"""`bench request-instructions`: parts of a count are told apart, added up, held against the bar, and shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.agent.result_table import told_by
from acmserve.bench.harness.options import read_partial
from acmserve.bench.harness.run_log import RUN
from acmserve.bench.micro.instructions import can_count, read_parts
from acmserve.bench.overhead import cases as counted
from acmserve.bench.overhead.cases import CountedCase, count_cases, program_of
from acmserve.bench.overhead.counted_cases import ENDED
from acmserve.bench.overhead.counted_http import read_answer
from acmserve.bench.overhead.counted_scheduler import KINDS, NUM_STEPS
from acmserve.bench.overhead.kept_cases import KeptCases
from acmserve.bench.overhead.main import CASES, FORWARD, HTTP, STEPS, as_report
from acmserve.bench.overhead.table import PARTS, STEP_KINDS, TOTALS
from acmserve.bench.overhead.totals import add_up, judge
from acmserve.bench.report.ledger import read_ledger
from acmserve.bench.report.page import sections_of
from acmserve.bench.report.sections.micro import MICRO
from acmserve.errors import AcmError

NEEDS_VALGRIND = pytest.mark.skipif(not can_count(), reason="needs Valgrind with its header, and g++")
MILLION = 1_000_000
OWN = {"stock": 0, "connector": 50_000, "acmserve": 100_000}
SECTION = [section for section in MICRO if section.files == ("request-instructions",)]


def made_case(words: tuple[str, ...]) -> CountedCase:
    """Stock takes 10 million of each, the plugin a hundredth more. SmolLM2 takes a thousand million."""
    count = 10 * MILLION + OWN[words[1]]
    if words[0] == STEPS:
        return CountedCase(words, dict.fromkeys(KINDS, [count] * NUM_STEPS), "steps")
    if words[0] == HTTP:
        return CountedCase(words, {"whole": [count] * 3, "streamed": [count, count, 2 * count]}, "answers")
    if words == FORWARD:
        return CountedCase(words, {"scheduler": [count], "worker": [900 * MILLION, 100 * MILLION]}, "rounds")
    half = count * int(words[3]) // 8
    return CountedCase(words, {"scheduler": [8 * half], "worker": [99 * half, *[half] * 7]}, "rounds")


def made_cases() -> list[CountedCase]:
    return [made_case(words) for words in (*CASES, *CASES, FORWARD)]


def test_a_request_is_added_up_and_held_against_the_bar() -> None:
    http = {"whole": {"stock": 60, "acmserve": 64}}
    alone = {"scheduler": {"stock": 40, "acmserve": 41}, "worker": {"stock": 100, "acmserve": 103}}
    rows = add_up(http, {"1": alone, "16": alone}, forward=900)
    assert rows[0]["own"] == {"http": 4, "scheduler": 1, "worker": 3}
    assert rows[0]["shares"] == {"strict": 0.08, "host": 0.04, "whole": 0.008}
    assert rows[1]["shares"] == {"strict": 0.08, "host": 0.04}, "nobody counted SmolLM2 with 16 requests at a time"
    assert [(bar["what"], bar["value"], bar["is_met"]) for bar in judge(rows)] == [
        ("strict", 0.08, False),
        ("host", 0.04, False),
        ("whole", 0.008, True),
    ]


def test_the_worst_row_decides() -> None:
    found = [{"shares": {"strict": share}} for share in (0.002, 0.011)]
    assert judge(found) == [{"what": "strict", "value": 0.011, "bar": 0.01, "is_met": False}]
    assert judge(found[:1])[0]["is_met"]


def test_a_report_has_counts_of_one_request_or_one_step() -> None:
    report = as_report(made_cases())
    same = {"stock": 10_000_000, "acmserve": 10_100_000}
    assert report["steps"]["mixed"] == {"stock": 10_000_000, "connector": 10_050_000, "acmserve": 10_100_000}
    assert report["http"] == {"whole": same, "streamed": same}, "the median, so one request on its own counts nothing"
    assert report["engine"]["16"] == {"scheduler": same, "worker": same}, "the median step, so a prompt counts as one"
    assert report["forward"] == 1000 * MILLION
    assert report["totals"][0]["shares"] == {"strict": 0.015, "host": 0.01, "whole": 0.00029}
    lines = [" ".join(line.split()) for line in told_by(PARTS, STEP_KINDS, TOTALS)(report)]
    assert "HTTP, a streamed answer 1 10,000,000 +100,000 +1.00 %" in lines
    assert "63 decode beside a chunk 10,000,000 +0.50 % +1.00 %" in lines
    assert "an answer in one piece 1 300,000 +1.50 % +1.00 % +0.03 %" in lines


def test_without_smollm2_the_last_share_is_empty() -> None:
    report = as_report([case for case in made_cases() if case.words != FORWARD])
    assert report["forward"] is None
    assert [bar["what"] for bar in report["bars"]] == ["strict", "host"]
    assert told_by(PARTS, TOTALS)(report)[-1] == "gate green"


def test_other_answers_and_counts_that_disagree_turn_the_gate_red() -> None:
    cases = made_cases()
    index = cases.index(made_case((HTTP, "acmserve")))
    cases[index] = replace(cases[index], said="another answer", parts={"whole": [11 * MILLION], "streamed": [1]})
    report = as_report(cases)
    assert report["gate"]["failures"] == [
        "counted_http acmserve: other answers or other steps than stock",
        "counted_http acmserve, whole: counts are further apart than 0.5%: [11000000, 10100000]",
        "counted_http acmserve, streamed: counts are further apart than 0.5%: [1, 10100000]",
    ]
    assert "bars" not in report


def test_the_section_is_there_once_it_was_counted(tmp_path: Path) -> None:
    assert "\n".join(sections_of(SECTION, tmp_path, read_ledger(tmp_path))) == ""
    (tmp_path / "request-instructions.json").write_text(json.dumps(as_report(made_cases())), encoding="utf-8")
    page = "\n".join(sections_of(SECTION, tmp_path, read_ledger(tmp_path)))
    assert "At worst +1.50 % HTTP and scheduler alone: missed." in page
    assert "+0.03 % with the forward pass of SmolLM2 on the processor: met." in page
    assert "A request has 1,000 prompt tokens and 100 of its answer." in page


def test_an_answer_is_read_whole_or_streamed() -> None:
    whole = {"id": "1", "choices": [{"message": {"content": "A day."}}], "usage": {"prompt_tokens": 3}}
    assert read_answer(json.dumps(whole).encode()) == ["A day.", {"prompt_tokens": 3}]
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": {"content": text}}]} for text in ("A ", "day.")]
    events = [f"data: {json.dumps(chunk)}\n\n" for chunk in [*chunks, {"choices": [], "usage": {"prompt_tokens": 3}}]]
    assert read_answer("".join([*events, "data: [DONE]\n\n"]).encode()) == ["A day.", {"prompt_tokens": 3}]


def test_parts_are_read_in_their_order(tmp_path: Path) -> None:
    text = "desc: Trigger: Client Request: {}\nevents: Ir\ntotals: {}\n"
    for number, name in enumerate(("step", "rest", *("step",) * 9), start=1):
        (tmp_path / f"callgrind.7.{number}-01").write_text(text.format(name, number), encoding="utf-8")
    (tmp_path / "callgrind.7.1-02").write_text(text.format("step", 99), encoding="utf-8")
    (tmp_path / "callgrind.7-01").write_text("desc: Trigger: Program termination\ntotals: 5\n", encoding="utf-8")
    assert read_parts(tmp_path, 7) == {"step": [1, 3, 4, 5, 6, 7, 8, 9, 10, 11], "rest": [2]}


@pytest.fixture
def sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Cases of a program that adds up numbers, in two parts."""
    program = "from acmserve.bench.micro.instructions import counting\n\n\ndef main(number):\n"
    program += "    with counting() as end_part:\n        for name in ('few', 'many'):\n"
    program += "            sum(range(int(number) * (10 if name == 'many' else 1)))\n            end_part(name)\n"
    program += "    print(number)\n"
    (tmp_path / "counted_sum.py").write_text(program, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(counted, "program_of", lambda name: name)
    return [("counted_sum", "1000"), ("counted_sum", "10000")]


@NEEDS_VALGRIND
def test_forks_of_one_process_are_counted_apart(sums: list[tuple[str, ...]]) -> None:
    small, large = count_cases(sums, imports=())
    assert (small.said, large.said) == (1000, 10000)
    for case in (small, large):
        assert 5 * case.parts["few"][0] < case.parts["many"][0] < 15 * case.parts["few"][0]
    assert 5 * small.parts["few"][0] < large.parts["few"][0] < 15 * small.parts["few"][0]


@NEEDS_VALGRIND
def test_a_run_that_was_ended_goes_on_behind_its_last_case(sums: list[tuple[str, ...]], tmp_path: Path) -> None:
    RUN.begin()
    file = tmp_path / "result.partial.json"
    ended = KeptCases(sums, file)

    def end(case: CountedCase) -> None:
        ended.keep(case)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        count_cases(ended.left(), imports=(), keep=end)
    again = KeptCases(sums, file)
    again.resume(read_partial(file))
    assert again.cases == ended.cases
    assert again.left() == sums[1:]
    count_cases(again.left(), imports=(), keep=again.keep)
    assert [case.words for case in again.cases] == sums
    assert [case.said for case in again.cases] == [1000, 10000]
    assert [line.partition(";")[0] for line in RUN.said] == ["2 of 2: counted_sum 10000"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"cases_planned": [["counted_sum", "7"]]}, "other cases"),
        ({"cpu": "an abacus"}, "cpu an abacus, now"),
        ({"commit": "c"}, "other code: c, now"),
    ],
)
def test_a_run_goes_on_with_nothing_of_other_code(changed: dict[str, Any], told: str, tmp_path: Path) -> None:
    RUN.begin()
    cases = [("counted_sum", "1000"), ("counted_sum", "10000")]
    kept = KeptCases(cases, tmp_path / "result.partial.json")
    kept.keep(CountedCase(cases[0], {"few": [3]}, 1000))
    report = read_partial(tmp_path / "result.partial.json")
    report |= {name: value for name, value in changed.items() if name in report}
    report["machine"] |= {name: value for name, value in changed.items() if name in report["machine"]}
    again = KeptCases(cases, tmp_path / "result.partial.json")
    with pytest.raises(AcmError, match=told):
        again.resume(report)
    assert again.cases == []
    assert again.left() == cases


def test_a_partial_result_that_lacks_something_is_refused_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "result.partial.json"
    for report in ({"cases_counted": []}, {"cases_counted": [], "cases_planned": []}):
        with pytest.raises(AcmError, match=r"result\.partial\.json cannot be gone on with: .+\. Begin anew without"):
            KeptCases([], file).resume(report)


def test_each_kind_of_step_is_what_its_name_says() -> None:
    """The real program with the plugin, without Valgrind. That stock takes the same steps is the benchmark's gate."""
    plan = {"imports": (), "cases": [(program_of(STEPS), "acmserve")]}
    done = subprocess.run(
        [sys.executable, "-m", counted.PROGRAM, json.dumps(plan)], check=True, capture_output=True, text=True
    )
    scheduled = json.loads(done.stdout.splitlines()[-1].removeprefix(ENDED))["said"]
    decode, prefill, mixed = (scheduled[kind][-NUM_STEPS:] for kind in KINDS)
    assert all(set(step.values()) == {1} and len(step) == 64 for step in decode)
    assert all(min(step.values()) > 1 and sum(step.values()) == 4096 for step in prefill)
    assert all(sorted(step.values())[:-1] == [1] * 63 and max(step.values()) in (256, 232) for step in mixed)
