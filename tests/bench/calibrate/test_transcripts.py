"""Edits of a user's own conversations: what is folded, what is asked, and how a file is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.calibrate.transcripts import CLEARED, ONE_FOLD, make_transcript_cases, read_transcripts
from acmserve.errors import AcmError

CALL = {"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "Mend the test."}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "the first long result with words of its own " * 20},
    {"role": "assistant", "content": "I look further."},
    {"role": "tool", "content": "second result " * 50},
    {"role": "assistant", "content": "Now I know what is wrong and I mend it in one place."},
]


def written(folder: Path, *lines: Any) -> Path:
    file = folder / "t.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return file


def test_a_conversation_gives_two_edits_and_the_last_message_is_what_is_asked(tmp_path: Path) -> None:
    cleared, one = read_transcripts(written(tmp_path, {"messages": MESSAGES}, ""))
    assert (cleared.task, one.task) == (CLEARED, ONE_FOLD)
    assert [piece.is_folded for piece in cleared.pieces] == [False, False, True, False, False]
    assert '"name": "read"' in cleared.pieces[1].text
    last = " ".join(MESSAGES[-1]["content"].split())
    for question in (*cleared.questions, *one.questions):
        assert f"assistant: {last}".startswith(f"{question.text} {question.gold}")
        (other,) = set(question.choices) - {question.gold}
        assert other in MESSAGES[2]["content"]


def test_without_tools_the_longest_messages_are_folded() -> None:
    texts = [("user", f"message {number} " * (60 + number)) for number in range(9)] + [("user", "one two " * 6)]
    cases = {case.task: [piece.is_folded for piece in case.pieces] for case in make_transcript_cases(texts, 1)}
    assert cases[CLEARED] == [False] * 5 + [True] * 3 + [False]
    assert cases[ONE_FOLD] == [False] * 7 + [True, False]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1 is no JSON"),
        ('{"messages": 3}', "line 1 has no list `messages`"),
        ('{"messages": ["hello"]}', "line 1: 'hello' is no message"),
        ({"messages": MESSAGES[:2]}, "has no conversation that can be edited"),
        ({"messages": [*MESSAGES[:4], *MESSAGES[5:]]}, "has no conversation that can be edited"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_line(tmp_path: Path, line: Any, said: str) -> None:
    with pytest.raises(AcmError, match=said):
        read_transcripts(written(tmp_path, line))
    with pytest.raises(AcmError, match="cannot be read"):
        read_transcripts(tmp_path / "none.jsonl")
