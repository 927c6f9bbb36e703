"""Traces in the format of agentperf-local: made here, since its texts are not ours to copy."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.agent.agentperf import INSTALLED, Limits, cut_texts, read_recording, read_recordings
from acmserve.bench.agent.recording import messages_of
from acmserve.context.episodes.delimiter import DELIMITER
from acmserve.context.episodes.graph import EpisodeGraph
from acmserve.errors import AcmError

LIMITS = Limits(system=3, user=3, said=2, result=4)


class Words:
    def starts(self, text: str) -> list[int]:
        return [match.start() for match in re.finditer(r"\S+", text)]


def said(number: int) -> list[dict[str, Any]]:
    call = {
        "id": f"c{number}",
        "type": "function",
        "function": {"name": "bash", "arguments": '{"command": "ls one two"}'},
    }
    answer = {"role": "tool", "tool_call_id": f"c{number}", "content": f"result {number} of many words"}
    return [{"role": "assistant", "content": "", "tool_calls": [call]}, answer]


def rows(num_turns: int, *, counted: bool = False) -> list[dict[str, Any]]:
    """A trace; with `counted` each prompt ends in a message of its own."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "a b c d"},
        {"role": "user", "content": "fix it now please"},
    ]
    found = []
    for number in range(num_turns):
        tail = [{"role": "user", "content": f"turn {number}"}] if counted else []
        found.append(
            {"messages": [*messages, *tail], "tools": [], "simulated_tool_delay_ms_after": 100.0 * (number + 1)}
        )
        messages = [*messages, *said(number)]
    return found


def lines(made: list[dict[str, Any]]) -> list[str]:
    return [json.dumps(row) for row in made]


@pytest.mark.parametrize("counted", [False, True])
def test_prompts_come_back_with_marks_of_episodes(counted: bool) -> None:
    made = rows(10, counted=counted)
    recording = read_recording("made", lines(made))
    assert len(recording.steps) == 10
    for number, row in enumerate(made):
        shown = [*messages_of(recording.steps[: number + 1]), *recording.steps[number].fleeting]
        unmarked = [message for message in shown if not str(message.get("tool_call_id", "")).startswith("mark")]
        assert [message["role"] for message in unmarked] == [message["role"] for message in row["messages"]]
        assert [message["content"] for message in unmarked] == [message["content"] for message in row["messages"]]
    assert [step.pause for step in recording.steps[:3]] == [0.0, 0.1, 0.2]
    graph = EpisodeGraph(messages_of(recording.steps))
    assert list(graph.names) == ["part-1", "part-2", "part-3"]
    assert str(next(iter(graph.live.values())).description).startswith('bash {"command": "ls one two"}; bash')
    graph.check_integrity()


def test_long_texts_are_cut_and_calls_stay_json() -> None:
    recording = cut_texts(read_recording("made", lines(rows(3))), LIMITS, Words())
    messages = messages_of(recording.steps)
    assert messages[0]["content"] == "a b c "
    assert messages[1]["content"] == "fix it now "
    results = [message["content"] for message in messages if message.get("tool_call_id") == "c0"]
    assert results == ["result 0 of many "]
    calls = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    assert [json.loads(call["arguments"]) for call in calls if call["name"] == "bash"] == [{"command": "ls one "}] * 2
    assert calls[0]["name"] == DELIMITER


def test_traces_are_found_in_a_folder_and_in_a_wheel(tmp_path: Path) -> None:
    folder = tmp_path / "replay"
    (folder / "traces").mkdir(parents=True)
    for name in ("b", "a"):
        (folder / "traces" / f"{name}.jsonl").write_text("\n".join(lines(rows(2))))
    assert [recording.name for recording in read_recordings(str(folder))] == ["a", "b"]
    tasks = {"tasks": [{"trace": "traces/b.jsonl"}, {"trace": "traces/a.jsonl"}]}
    (folder / "manifest-x86_64.json").write_text(json.dumps(tasks))
    assert [recording.name for recording in read_recordings(str(folder))] == ["b", "a"]
    wheel = tmp_path / "agentperf_local-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in sorted(folder.rglob("*.json*")):
            inside = Path("agentperf_local/data/replays/agentperf-default-v1") / path.relative_to(folder)
            archive.write(path, str(inside))
    assert [recording.name for recording in read_recordings(str(wheel))] == ["b", "a"]


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "line 1: this is no turn"), ('{"messages": [{}]}', "line 1: this is no turn"), ("", "the trace is empty")],
)
def test_a_bad_trace_is_named(text: str, says: str) -> None:
    with pytest.raises(AcmError, match=says):
        read_recording("bad", text.splitlines())


def test_a_missing_trace_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(AcmError, match=r"pip install 'acmserve\[traces\]'"):
        read_recordings(INSTALLED)
    with pytest.raises(AcmError, match="there is no such file"):
        read_recordings(str(tmp_path / "none"))
    with pytest.raises(AcmError, match="no trace"):
        read_recordings(str(tmp_path))
    (tmp_path / "text.whl").write_text("text")
    with pytest.raises(AcmError, match="neither a folder nor a wheel"):
        read_recordings(str(tmp_path / "text.whl"))
