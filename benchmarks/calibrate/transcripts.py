"""Cases out of a user's own conversations: edits that agents make, and what was really said next. Knows no tokenizer.

    line       {"messages": [{"role": ..., "content": ...}, ...]}, one conversation, as chat completions take it
    cleared    all tool results but the last are folded. Without tool messages, the longest half of the others is
    one fold   the longest message that is not one of the last two is folded
    question   the last message, up to some of its words: how does it go on? Either word has a first token of its own

There is no right answer to a conversation. A model is `right` where it finds the word that really came likelier than a
word of the folded text. KL to exact is what a level is judged by.

Decision: messages are rendered as plain text and not by the model's chat template. Some templates refuse a tool result
without its call, or drop what an earlier turn thought.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acmserve.bench.tasks.generators.case import CasePiece, CaseQuestion, TaskCase, first_word_is
from acmserve.errors import AcmError
from acmserve.validation import echo

CLEARED, ONE_FOLD = "yours, results cleared", "yours, one fold"
NUM_QUESTIONS = 4
MIN_QUESTIONS = 2
"""One stands behind the edit, and another one is asked of the cache that it left."""
_MIN_MESSAGES = 4
_MIN_WORDS = 8
_MIN_WORDS_EACH = 100
"""Of what is folded, and of what stays behind it. Shorter text moves little, and says little."""
Texts = list[tuple[str, str]]
"""Role and text of each message."""
FirstToken = Callable[[str], int | None]
"""Of a word behind a question, None where the tokenizer knows nothing of it."""
_REMEDY = 'Each line is {"messages": [{"role": "user", "content": "..."}, ...]}.'


@dataclass(frozen=True, slots=True)
class OwnEdit:
    """An edit of a conversation. `case` is None where it has fewer than `MIN_QUESTIONS` questions.

    `num_redrawn` questions have another wrong word than the first that was drawn. `num_dropped` could be given none.
    """

    case: TaskCase | None
    num_redrawn: int = 0
    num_dropped: int = 0


@dataclass(frozen=True, slots=True)
class _Question:
    """At a word of the last message. `other` is the wrong word, and `is_first` says that none was drawn before it."""

    at: int
    other: str
    is_first: bool


def read_transcripts(file: Path, first_token: FirstToken) -> list[OwnEdit]:
    """Two edits of each conversation. Raises AcmError with the line that cannot be read, and the remedy."""
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise AcmError(f"--transcripts {file} cannot be read: {error}. Give a file of JSON lines.") from None
    edits = [
        edit
        for number, line in enumerate(lines, start=1)
        if line.strip()
        for edit in make_own_edits(_read(line, f"--transcripts {file}, line {number}"), number, first_token)
    ]
    if not edits:
        raise AcmError(
            f"--transcripts {file} has no conversation that can be edited. One has {_MIN_MESSAGES} messages or more, "
            f"{_MIN_WORDS} words in the last one, and {_MIN_WORDS_EACH} words to fold and as many behind them."
        )
    return edits


def make_own_edits(texts: Texts, number: int, first_token: FirstToken) -> Iterator[OwnEdit]:
    """The edits of one conversation, fewer where it has nothing to fold. `number` names it."""
    if len(texts) < _MIN_MESSAGES or len(texts[-1][1].split()) < _MIN_WORDS:
        return
    for task, folded in ((CLEARED, _results(texts)), (ONE_FOLD, _longest(texts))):
        if _is_long(texts, folded):
            yield _make_edit(texts, task, folded, number, first_token)


def _make_edit(texts: Texts, task: str, folded: frozenset[int], number: int, first_token: FirstToken) -> OwnEdit:
    role, text = texts[-1]
    words = text.split()
    drawn, num_wanted = _draw(texts, folded, number, first_token)
    num_dropped = num_wanted - len(drawn)
    if len(drawn) < MIN_QUESTIONS:
        return OwnEdit(None, num_dropped=num_dropped)
    questions = tuple(
        CaseQuestion(f"{role}: {' '.join(words[: one.at])}", words[one.at], (words[one.at], one.other), first_word_is)
        for one in drawn
    )
    pieces = tuple(CasePiece(f"{role}: {text}\n", at in folded) for at, (role, text) in enumerate(texts[:-1]))
    case = TaskCase(task, f"{len(texts)} messages", number, pieces, questions)
    case.check_integrity()
    return OwnEdit(case, sum(not one.is_first for one in drawn), num_dropped)


def _is_long(texts: Texts, folded: frozenset[int]) -> bool:
    behind = [at for at in range(min(folded, default=len(texts)), len(texts) - 1) if at not in folded]
    return all(sum(len(texts[at][1].split()) for at in some) >= _MIN_WORDS_EACH for some in (folded, behind))


def _results(texts: Texts) -> frozenset[int]:
    """All tool results but the last one. Where nobody is a tool, the longest half of what may be folded."""
    last = len(texts) - 2
    results = [at for at, (role, _) in enumerate(texts[:last]) if role in ("tool", "function")]
    if results:
        is_behind = any(role in ("tool", "function") for role, _ in texts[last:-1])
        return frozenset(results if is_behind else results[:-1])
    candidates = sorted(range(1, last), key=lambda at: len(texts[at][1]), reverse=True)
    return frozenset(candidates[: len(candidates) // 2])


def _longest(texts: Texts) -> frozenset[int]:
    candidates = range(1, len(texts) - 2)
    return frozenset([max(candidates, key=lambda at: len(texts[at][1]))]) if candidates else frozenset()


def _draw(texts: Texts, folded: frozenset[int], number: int, first_token: FirstToken) -> tuple[list[_Question], int]:
    """Cuts of the last message in front of some of its words, each with a word of the folded text that tells apart.

    And how many were wanted. A model is asked for first tokens alone, so both words need one of their own.
    """
    words = texts[-1][1].split()
    draw = random.Random(f"{number} {sorted(folded)}")
    others = sorted({word for at in folded for word in texts[at][1].split() if word[0].isalpha()} - set(words))
    cuts = [at for at in range(1, len(words)) if words[at][0].isalpha()]
    tokens = {word: first_token(word) for word in {*others, *(words[at] for at in cuts)}}
    found: list[_Question] = []
    for at in draw.sample(cuts, len(cuts)):
        if len(found) == NUM_QUESTIONS:
            break
        order, token = draw.sample(others, len(others)), tokens[words[at]]
        other = next((word for word in order if token is not None and tokens[word] not in (None, token)), None)
        if other is not None:
            found.append(_Question(at, other, other == order[0]))
    # The longest one first: a later question that goes on where another one ended would take its last block.
    return sorted(found, key=lambda one: one.at, reverse=True), min(NUM_QUESTIONS, len(cuts))


def _read(line: bytes, where: str) -> Texts:
    """The texts of a line. A line separator of Unicode ends no line of JSON."""
    try:
        found = json.loads(line.decode("utf-8"))
        messages = found.get("messages") if isinstance(found, dict) else None
        if not isinstance(messages, list):
            raise AcmError(f"{where} has no list `messages`. {_REMEDY}")
        return [(role, text) for role, text in (_text_of(message, where) for message in messages) if text]
    except RecursionError:
        raise AcmError(f"{where} is nested too deeply. {_REMEDY}") from None
    except ValueError as error:
        raise AcmError(f"{where} is no JSON: {error}. {_REMEDY}") from None


def _text_of(message: Any, where: str) -> tuple[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise AcmError(f"{where}: {echo(message)} is no message. {_REMEDY}")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise AcmError(f"{where}: `tool_calls` is {echo(calls)}, and no list of objects. {_REMEDY}")
    told = [json.dumps(call.get("function", call)) for call in calls]
    role, text = message["role"], "\n".join([*_parts(message.get("content")), *told]).strip()
    try:
        (role + text).encode("utf-8")
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise AcmError(f"{where}: {half} is half of a pair and no text, so no tokenizer takes it. Remove it.") from None
    return role, text


def _parts(content: Any) -> Sequence[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
