"""What interleaved rounds play and keep, without a server."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import pytest

from acmserve.bench.agent.conversation import ConversationRun, ConversationTurn
from acmserve.bench.agent.scripted_agent import Exchanged, Trace, make_trace
from acmserve.bench.harness.library_text import Library, read_library
from acmserve.bench.harness.options import partial_file, read_partial
from acmserve.bench.models.witness import WITNESS, Agreement
from acmserve.bench.precompute.chains import NUM_STEPS, USER_MESSAGES, dropped_tokens, make_chains
from acmserve.bench.precompute.main import main, measure_paired
from acmserve.bench.precompute.rounds import (
    RoundPlan,
    agreement_of,
    as_run,
    kept_rounds,
    note_dropped,
)
from acmserve.bench.precompute.runs import CLEARING, CWL, THOUGHTS, make_run, pauses_of
from acmserve.bench.precompute.table import as_rounds_report
from acmserve.bench.precompute.thoughts import dropping_template
from acmserve.bench.report.sections.paired import pauses_note
from acmserve.errors import AcmError

MACHINE = {
    "commit": "c",
    "cpu": "one",
    "vectors": "avx512",
    "cores": 2,
    "memory_gib": 7.8,
    "versions": {"vllm": "0.32.0", "torch": "2.9.0"},
}


class Characters:
    """A token is a character."""

    def starts(self, text: str) -> range:
        return range(len(text))


@pytest.fixture(scope="module")
def library() -> Library:
    return read_library()


def turn(prompt: int, *, follows_pause: bool = True, evicted: int = 0) -> ConversationTurn:
    receipt = {"prompt_tokens": prompt, "kept_tokens": 0, "moved_tokens": 0, "computed_tokens": prompt}
    return ConversationTurn(receipt, 0.1, evicted, follows_pause=follows_pause)


def rendered(messages: list[dict[str, Any]]) -> str:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(dropping_template()).render(messages=messages, add_generation_prompt=True)


def test_each_round_is_another_part_of_one_conversation(library: Library) -> None:
    whole = make_trace(library, Characters(), 6)
    plan = RoundPlan(CWL, whole, num_tasks=2, num_rounds=3)
    parts = [plan.part(number) for number in range(3)]
    assert [request for part in parts for request in part.requests] == list(whole.requests)
    assert [part.requests[0].asked[:7] for part in parts if part.requests[0].asked] == ["Task 1:", "Task 3:", "Task 5:"]


def test_each_round_of_thoughts_has_whole_chains_and_so_its_edited_turns(library: Library) -> None:
    plan = RoundPlan(THOUGHTS, make_chains(library, Characters(), 4), num_tasks=2, num_rounds=2)
    for number in range(2):
        dropped = dropped_tokens(plan.part(number), Characters())
        assert sum(map(bool, dropped)) == 2
    assert [request for n in range(2) for request in plan.part(n).requests] == list(plan.trace.requests)


def test_both_modes_of_a_round_wait_the_same_pauses_and_each_round_others(library: Library) -> None:
    part = make_trace(library, Characters(), 1)
    assert pauses_of(part, 0) == pauses_of(part, 0)
    assert pauses_of(part, 0) != pauses_of(part, 1)
    assert len(pauses_of(part, 0)) == len(part.requests)
    assert all(0.5 <= seconds <= 5 for seconds in pauses_of(part, 0))


def test_a_turn_has_the_pause_in_front_of_its_request_and_a_later_step_none() -> None:
    part = Trace((Exchanged(("one", "two"), None, "asked"), Exchanged(("three",), None, "asked")), {})
    run = ConversationRun("exact", {}, turns=[turn(10), turn(20, follows_pause=False), turn(30)])
    first, second = pauses_of(part, 4)
    assert as_run(run, part, 4)["turns"]["pause_seconds"] == pytest.approx([first, 0.0, second], abs=1e-3)


def test_what_the_template_drops_is_what_its_turn_is_said_to_have_lost(library: Library) -> None:
    """The rendered prompts, with a token for each character: the edited turn has what is new, less the thoughts."""
    trace = make_chains(library, Characters(), 2)
    dropped = dropped_tokens(trace, Characters())
    messages: list[dict[str, Any]] = []
    turns, edited = [], []
    for number, request in enumerate(trace.requests):
        messages += [{"role": "user", "content": request.asked}] if request.asked else []
        turns.append(turn(len(rendered(messages))))
        edited += [number] if dropped[number] else []
        messages.append({"role": "assistant", "content": request.said[0]})
        messages += [{"role": "tool", "content": request.result}] if request.result else []
    assert edited == [NUM_STEPS + 1, 2 * NUM_STEPS + 4]
    run = make_run("exact", THOUGHTS, "exact", "off")
    run.turns = turns
    assert note_dropped(run, trace, Characters()) == []
    assert [turn.evicted for turn in run.turns] == dropped


def test_a_template_that_drops_nothing_is_told(library: Library) -> None:
    """The control of the test above: prompts that only grow."""
    trace = make_chains(library, Characters(), 1)
    run = make_run("exact", THOUGHTS, "exact", "off")
    run.turns = [turn(1000 * number) for number in range(1, len(trace.requests) + 1)]
    [failure] = note_dropped(run, trace, Characters())
    assert "the template dropped no thoughts" in failure


def test_chains_are_the_same_each_time_and_longer_ones_begin_alike(library: Library) -> None:
    one, two = (make_chains(library, Characters(), number) for number in (1, 2))
    assert two.requests[: len(one.requests)] == one.requests
    assert len(one.tasks) == USER_MESSAGES, "the chain, and two messages behind it"
    assert all(len(request.said) == 1 for request in two.requests)


def test_answers_are_compared_where_both_saw_the_same_prompt(tmp_path: Path) -> None:
    part = Trace(tuple(Exchanged(("said",), None, "asked") for _ in range(3)), {})
    runs = []
    for name, evicts in (("on", True), ("off", False)):
        runs.append(ConversationRun(name, {}, turns=[turn(10), turn(20), turn(30)]))
        for number, one in enumerate(runs[-1].turns):
            one.prompt_messages = [
                {"role": "user", "content": f"{number}{evicts and number == 1}"},
                {"role": "tool", "tool_call_id": f"drawn for {name}", "content": "read"},
            ]
    runs[0].turns[2].prompt_messages = None
    witness = tmp_path / "witness.jsonl"
    said = [
        {"id": f"{name}-{number}", "step": 0, "said": [1, 2 + (name == "on" and number > 0)], "lead": [1.0, 1.0]}
        for name in ("on", "off")
        for number in range(3)
    ]
    witness.write_text("\n".join(map(json.dumps, said)), encoding="utf-8")
    assert agreement_of(*runs, part, witness) == Agreement(2, 0, 0)
    runs[0].turns[1].prompt_messages = runs[1].turns[1].prompt_messages
    assert agreement_of(*runs, part, witness) == Agreement(4, 1, 0)
    for one in runs[0].turns:
        one.prompt_messages = None
    with pytest.raises(AcmError, match="no prompt in common"):
        agreement_of(*runs, part, witness)


def test_whole_rounds_of_the_same_run_are_kept(tmp_path: Path, library: Library) -> None:
    plan = RoundPlan(CLEARING, make_trace(library, Characters(), 2), num_tasks=1, num_rounds=2)
    about = plan.describe("tiny")
    quiet, busy = {"seconds": 9.0, "other_share": 0.0}, {"seconds": 9.0, "other_share": 0.4}
    rounds = [
        {"number": 0, "failures": [], "use": quiet},
        {"number": 1, "failures": [], "use": busy},
        {"number": 2, "failures": ["red"], "use": quiet},
    ]
    file = tmp_path / "precompute.partial.json"
    with pytest.raises(AcmError, match="to resume"):
        read_partial(file)
    file.write_text(json.dumps({"rounds_of": about, "rounds": rounds, "machine": MACHINE}), encoding="utf-8")
    assert kept_rounds(read_partial(file), about, MACHINE) == rounds[:1], "a busy one and a red one are played again"
    assert kept_rounds({"partial": True, "answers": []}, about, MACHINE) == [], "it was ended in its first round"
    with pytest.raises(AcmError, match="other code: c, now d"):
        kept_rounds(read_partial(file), about, MACHINE | {"commit": "d"})
    with pytest.raises(AcmError, match="--resume: the run that was ended had num_tasks 1, now 2; pause_seconds "):
        kept_rounds(read_partial(file), replace(plan, num_tasks=2).describe("tiny"), MACHINE)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpu", "another"),
        ("vectors", "avx2"),
        ("cores", 4),
        ("memory_gib", 15.0),
        ("versions", {"vllm": "0.33.0", "torch": "2.9.0"}),
    ],
)
def test_a_round_of_another_machine_or_another_vllm_is_not_gone_on_with(
    name: str, value: object, library: Library
) -> None:
    plan = RoundPlan(CWL, make_trace(library, Characters(), 1), num_tasks=1, num_rounds=1)
    about = plan.describe("tiny")
    report = {"rounds_of": about, "rounds": [], "machine": MACHINE}
    assert kept_rounds(report, about, MACHINE) == []
    with pytest.raises(AcmError, match=f"the run that was ended had {name} .*, now .*Begin anew without --resume"):
        kept_rounds(report, about, MACHINE | {name: value})


@pytest.mark.parametrize(
    ("constant", "value", "told"),
    [
        ("TOOL_SECONDS", (1.0, 5.0), "had conditions "),
        ("BUDGET", {"max_tokens": 1}, "had conditions "),
        ("EDITS", [], ""),
        ("_SEED", 5, ""),
    ],
)
def test_a_round_with_other_pauses_or_rules_is_not_gone_on_with(
    constant: str, value: object, told: str, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules of another policy do not matter, nor does the seed of the other forms."""
    plan = RoundPlan(CWL, make_trace(library, Characters(), 1), num_tasks=1, num_rounds=1)
    about = json.loads(json.dumps(plan.describe("tiny")))
    monkeypatch.setattr(f"acmserve.bench.precompute.runs.{constant}", value)
    with pytest.raises(AcmError, match=told) if told else nullcontext():
        kept_rounds({"rounds_of": about, "rounds": [], "machine": MACHINE}, plan.describe("tiny"), MACHINE)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (None, "cannot be read: Expecting value"),
        ({"machine": None}, "KeyError: 'machine'"),
        ({"rounds": [{"number": 0, "failures": [], "use": {}}]}, "LookupError: a round without order, agreement, runs"),
        ({"rounds": [3]}, "AttributeError"),
        ({"rounds_of": 3}, "TypeError"),
    ],
)
def test_a_cut_or_odd_result_is_refused_by_its_name_before_a_server_starts(
    changed: dict[str, Any] | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Library
) -> None:
    plan = RoundPlan(CWL, make_trace(library, Characters(), 1), num_tasks=1, num_rounds=1)
    about, file = plan.describe("tiny"), tmp_path / "precompute.partial.json"
    machine = MACHINE
    monkeypatch.setattr("acmserve.bench.precompute.main._plan", lambda _: (plan, Characters()))
    monkeypatch.setattr("acmserve.bench.precompute.main.describe_machine", lambda: machine)
    report = {"rounds_of": about, "rounds": [], "machine": machine} | (changed or {})
    report = {name: value for name, value in report.items() if value is not None}
    file.write_text('{"rounds": [1,' if changed is None else json.dumps(report), encoding="utf-8")
    options = argparse.Namespace(model="tiny", json=tmp_path / "precompute.json", resume=True)
    with pytest.raises(AcmError) as raised:
        measure_paired(options, tmp_path / "witness.jsonl")
    assert str(raised.value).startswith(f"{file} cannot be ")
    assert told in str(raised.value)
    assert str(raised.value).endswith("Begin anew without --resume.")


@pytest.mark.parametrize(("other_share", "is_kept"), [(0.0, False), (0.4, True)])
def test_rounds_are_kept_where_the_result_is_of_a_busy_machine(
    other_share: float, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a result is refused, and the next run with `--resume` measures the busy rounds alone."""
    file = tmp_path / "paired.json"

    def run(_parser: object, _argv: object, _measure: object, *_tables: object) -> int:
        use = {"seconds": 9.0, "other_share": other_share, "stolen_share": 0.0}
        file.write_text(json.dumps({"gate": {"green": True}, "use": use}), encoding="utf-8")
        partial_file(file).write_text("{}", encoding="utf-8")
        return 0

    monkeypatch.setattr("acmserve.bench.precompute.main.run_benchmark", run)
    monkeypatch.setenv(WITNESS, "")
    assert main(["--json", str(file)]) == 0
    assert partial_file(file).is_file() is is_kept


def test_a_result_tells_where_its_pauses_are_from_and_an_older_one_is_read() -> None:
    report = as_rounds_report({"policy": CWL}, [])
    older = {key: value for key, value in report.items() if key != "pauses"}
    assert "0.5 to 5 s, drawn from the times of tools that TraceLab, arXiv 2606.30560 published" in pauses_note(report)
    assert "55 % of those calls are faster and 20 % are slower" in pauses_note(report)
    assert "evenly" in pauses_note(older)
