"""Traces in the form of agentperf-local. They are made here, since its texts are not ours to copy."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.agent import agentperf
from acmserve.bench.agent.agentperf import SHA256, choose_recordings, read_recording, read_recordings, take_wheel
from acmserve.bench.trace.main import _parser
from acmserve.errors import AcmError

FOLDER = "agentperf_local/data/replays/agentperf-default-v1"


def rows(num_turns: int, *, is_counted: bool = False) -> list[dict[str, Any]]:
    """A trace. With `is_counted` each prompt ends in a message of its own."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Fix it."},
    ]
    found = []
    for number in range(num_turns):
        tail = [{"role": "user", "content": f"turn {number}"}] if is_counted else []
        delay = 100.0 * (number + 1)
        found.append({"messages": [*messages, *tail], "tools": [], "simulated_tool_delay_ms_after": delay})
        call = {"id": f"c{number}", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        messages = [*messages, said, {"role": "tool", "tool_call_id": f"c{number}", "content": f"result {number}"}]
    return found


def lines(made: list[dict[str, Any]]) -> list[str]:
    return [json.dumps(row) for row in made]


def wheel_of(folder: Path, files: dict[str, str]) -> Path:
    wheel = folder / "agentperf_local-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"{FOLDER}/{name}", text)
    return wheel


@pytest.mark.parametrize("is_counted", [False, True])
def test_the_prompts_of_a_trace_come_back(is_counted: bool) -> None:
    made = rows(5, is_counted=is_counted)
    recording = read_recording("made", lines(made))
    assert len(recording.steps) == 5
    for number, row in enumerate(made):
        kept = [message for step in recording.steps[: number + 1] for message in step.new]
        assert [*kept, *recording.steps[number].fleeting] == row["messages"]
    # The last prompt has no next one, which would tell what of it is fleeting.
    assert [len(step.fleeting) for step in recording.steps] == [int(is_counted)] * 4 + [0]
    assert [step.pause for step in recording.steps[:3]] == [0.0, 0.1, 0.2]
    assert [step.new[0]["role"] for step in recording.steps] == ["system", *["assistant"] * 4]


def test_traces_are_read_in_the_order_of_the_manifest(tmp_path: Path) -> None:
    tasks = {"tasks": [{"task_id": name, "trace": f"traces/{name}.jsonl"} for name in ("b", "a")]}
    files = {f"traces/{name}.jsonl": "\n".join(lines(rows(2))) for name in ("a", "b", "unlisted")}
    wheel = wheel_of(tmp_path, files | {"manifest-x86_64.json": json.dumps(tasks)})
    assert [recording.name for recording in read_recordings(wheel)] == ["b", "a"]


def test_some_of_the_conversations_are_chosen_by_name() -> None:
    recordings = [read_recording(name, lines(rows(2))) for name in ("one", "two", "three")]
    assert choose_recordings(recordings, ()) == recordings
    assert [one.name for one in choose_recordings(recordings, ("three", "one"))] == ["one", "three"]
    with pytest.raises(AcmError, match=r"--sessions four: no conversation has that name; there are one, two, three"):
        choose_recordings(recordings, ("one", "four"))
    assert _parser().parse_args(["--sessions", "one, two"]).sessions == ("one", "two")


def test_a_file_without_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AcmError, match=r"no .*manifest\*\.json is in it"):
        read_recordings(wheel_of(tmp_path, {"traces/a.jsonl": ""}))
    (tmp_path / "text.whl").write_text("text")
    with pytest.raises(AcmError, match="this is no wheel"):
        read_recordings(tmp_path / "text.whl")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "line 1: this is no turn"),
        ('{"messages": [{}]}', "line 1: this is no turn"),
        ('{"messages": []}', "line 1: it has no messages"),
        ("", "the trace is empty"),
    ],
)
def test_a_bad_trace_is_named(text: str, says: str) -> None:
    with pytest.raises(AcmError, match=says):
        read_recording("bad", text.splitlines())


def test_a_turn_that_does_not_go_on_is_named() -> None:
    made = rows(3)
    made[2]["messages"] = [{"role": "system", "content": "Another one."}]
    with pytest.raises(AcmError, match="bad, turn 2: it does not go on"):
        read_recording("bad", lines(made))


def test_another_wheel_than_the_one_that_was_measured_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked for in the cache, and nothing is downloaded where it is."""
    monkeypatch.setenv("ACMSERVE_HOME", str(tmp_path))
    monkeypatch.setattr(agentperf, "_download", lambda folder: pytest.fail("it was downloaded"))
    wheel = tmp_path / "acmserve" / "traces" / "agentperf_local-0.3.4-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    wheel.write_text("another")
    with pytest.raises(AcmError, match=f"expected {SHA256}; remove it"):
        take_wheel(lambda line: None)


def test_the_command_line_takes_traces_and_lengths_of_answers() -> None:
    options = _parser().parse_args(["--traces", "agentperf", "--answer-tokens", "0"])
    assert (options.traces, options.answer_tokens) == ("agentperf", 0)
    assert _parser().parse_args([]).traces is None
