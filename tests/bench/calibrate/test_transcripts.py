"""Edits of a user's own conversations: what is folded, what is asked, and how a file is refused."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.calibrate.transcripts import (
    CLEARED,
    NUM_QUESTIONS,
    ONE_FOLD,
    FirstToken,
    OwnEdit,
    make_own_edits,
    read_transcripts,
)
from acmserve.bench.tasks.generators.case import TaskCase
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


TEXTS: list[dict[str, Any]] = [
    *MESSAGES[:2],
    {"role": "tool", "content": "test_save_y test_load_x test_render_3 test_a test_b test_c passed " * 25},
    *MESSAGES[3:5],
    {"role": "assistant", "content": "so test_render_17 and test_parse are mended now, please run test_walk too"},
]


def written(folder: Path, *lines: Any) -> Path:
    file = folder / "t.jsonl"
    told = [line if isinstance(line, str | bytes) else json.dumps(line) for line in lines]
    file.write_bytes(b"\n".join(line.encode() if isinstance(line, str) else line for line in told))
    return file


def whole(word: str) -> int:
    """A tokenizer that knows each word."""
    return int.from_bytes(word.encode())


def cases_of(edits: Iterable[OwnEdit]) -> list[TaskCase]:
    return [edit.case for edit in edits if edit.case is not None]


def test_a_conversation_gives_two_edits_and_the_last_message_is_what_is_asked(tmp_path: Path) -> None:
    cleared, one = cases_of(read_transcripts(written(tmp_path, {"messages": MESSAGES}, ""), whole))
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
    cases = {
        case.task: [piece.is_folded for piece in case.pieces] for case in cases_of(make_own_edits(texts, 1, whole))
    }
    assert cases[CLEARED] == [False] * 5 + [True] * 3 + [False]
    assert cases[ONE_FOLD] == [False] * 7 + [True, False]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1 is no JSON"),
        ('{"messages": 3}', "line 1 has no list `messages`"),
        ('{"messages": ["hello"]}', "line 1: 'hello' is no message"),
        ("[" * 200_000, "line 1 is nested too deeply"),
        ('{"messages": [' + "[" * 900 + "]" * 900 + "]}", "line 1"),
        (b"\xff", "line 1 is no JSON: 'utf-8' codec can't decode"),
        ({"messages": [MESSAGES[0] | {"tool_calls": 5}]}, "line 1: `tool_calls` is 5, and no list of objects"),
        ({"messages": [MESSAGES[0] | {"tool_calls": True}]}, "line 1: `tool_calls` is True, and no list of objects"),
        ({"messages": [MESSAGES[0] | {"tool_calls": [1]}]}, r"line 1: `tool_calls` is \[1\], and no list of objects"),
        ({"messages": [{"role": "user", "content": "a \ud83d"}]}, r"line 1: '\\ud83d' is half of a pair and no text"),
        ({"messages": [{"role": "\udc00", "content": "a"}]}, r"line 1: '\\udc00' is half of a pair and no text"),
        ({"messages": MESSAGES[:2]}, "has no conversation that can be edited"),
        ({"messages": [*MESSAGES[:4], *MESSAGES[5:]]}, "has no conversation that can be edited"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_line(tmp_path: Path, line: Any, said: str) -> None:
    with pytest.raises(AcmError, match=said):
        read_transcripts(written(tmp_path, line), whole)
    with pytest.raises(AcmError, match="cannot be read"):
        read_transcripts(tmp_path / "none.jsonl", whole)


def test_a_line_of_json_ends_at_a_line_feed_alone_and_pairs_are_text(tmp_path: Path) -> None:
    """`json.dumps` escapes no separators of Unicode with `ensure_ascii=False`, and `str.splitlines` splits at them."""
    said = "a\u2028b\u2029c\x85d \U0001f642"
    messages = [MESSAGES[0] | {"content": said}, *MESSAGES[1:]]
    line = json.dumps({"messages": messages}, ensure_ascii=False)
    file = written(tmp_path, "", f"{line}\r", json.dumps({"messages": messages}))
    first, _, escaped, _ = cases_of(read_transcripts(file, whole))
    assert (first.seed, escaped.seed) == (2, 3)
    assert first.pieces[0].text == escaped.pieces[0].text == f"user: {said}\n"


@pytest.mark.parametrize("first_token", [lambda word: ord(word[0]), lambda word: None if word < "o" else ord(word[0])])
def test_both_words_of_a_question_begin_with_tokens_of_their_own(first_token: FirstToken) -> None:
    """As `test_save_y` and `test_render_17` do not."""
    edits = list(make_own_edits([(one["role"], one["content"] or "") for one in TEXTS], 1, first_token))
    assert len(cases_of(edits)) == 2
    for question in (question for case in cases_of(edits) for question in case.questions):
        one, other = (first_token(word) for word in question.choices)
        assert one is not None
        assert other is not None
        assert one != other
    assert [len(edit.case.questions) + edit.num_dropped for edit in edits if edit.case] == [NUM_QUESTIONS] * 2
    assert sum(edit.num_redrawn for edit in edits) > 0, "the test redraws nothing"


def test_an_edit_whose_words_all_begin_alike_has_no_case_and_is_counted(tmp_path: Path) -> None:
    edits = read_transcripts(written(tmp_path, {"messages": MESSAGES}), lambda word: 7)
    assert edits == [OwnEdit(None, num_dropped=NUM_QUESTIONS)] * 2
    one_is_not = read_transcripts(written(tmp_path, {"messages": MESSAGES}), lambda word: 8 if word == "wrong" else 7)
    assert all(edit.case is None for edit in one_is_not), "one question asks nothing of the cache that an edit left"
