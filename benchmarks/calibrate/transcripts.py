"""Cases out of a user's own conversations: edits that agents make, and what was really said next. Pure.

    line       {"messages": [{"role": ..., "content": ...}, ...]}, one conversation, as chat completions take it
    cleared    all tool results but the last are folded; without tool messages, the longest half of the others
    one fold   the longest message that is not one of the last two is folded
    question   the last message, up to some of its words: how does it go on?

There is no right answer to a conversation. A model is `right` where it finds the word that really came likelier than a
word of the folded text. KL to exact is what a level is judged by.

Decision: messages are rendered as plain text and not by the model's chat template. Some templates refuse a tool result
without its call, or drop what an earlier turn thought.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.tasks.generators.case import CasePiece, CaseQuestion, TaskCase, first_word_is
from acmserve.errors import AcmError
from acmserve.validation import echo

CLEARED, ONE_FOLD = "yours, results cleared", "yours, one fold"
NUM_QUESTIONS = 4
_MIN_MESSAGES = 4
_MIN_WORDS = 8
_MIN_WORDS_EACH = 100
"""Of what is folded, and of what stays behind it. Shorter text moves little, and says little."""
Texts = list[tuple[str, str]]
"""Role and text of each message."""


def read_transcripts(file: Path) -> list[TaskCase]:
    """Two cases of each conversation. Raises AcmError with the line that cannot be read, and the remedy."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AcmError(f"--transcripts {file} cannot be read: {error}. Give a file of JSON lines.") from None
    cases = [
        case
        for number, line in enumerate(lines, start=1)
        if line.strip()
        for case in make_transcript_cases(_read(line, f"--transcripts {file}, line {number}"), number)
    ]
    if not cases:
        raise AcmError(
            f"--transcripts {file} has no conversation that can be edited. One has {_MIN_MESSAGES} messages or more, "
            f"{_MIN_WORDS} words in the last one, and {_MIN_WORDS_EACH} words to fold and as many behind them."
        )
    return cases


def make_transcript_cases(texts: Texts, number: int) -> Iterator[TaskCase]:
    """The cases of one conversation, fewer where it has nothing to fold. `number` names it."""
    if len(texts) < _MIN_MESSAGES or len(texts[-1][1].split()) < _MIN_WORDS:
        return
    for task, folded in ((CLEARED, _results(texts)), (ONE_FOLD, _longest(texts))):
        if _is_long(texts, folded) and (questions := _questions(texts, folded, number)):
            pieces = tuple(CasePiece(f"{role}: {text}\n", at in folded) for at, (role, text) in enumerate(texts[:-1]))
            case = TaskCase(task, f"{len(texts)} messages", number, pieces, questions)
            case.check_integrity()
            yield case


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


def _questions(texts: Texts, folded: frozenset[int], number: int) -> tuple[CaseQuestion, ...]:
    """The last message, cut in front of some of its words. The other choice is a word of the folded text."""
    role, text = texts[-1]
    words = text.split()
    draw = random.Random(f"{number} {sorted(folded)}")
    others = sorted({word for at in folded for word in texts[at][1].split() if word[0].isalpha()} - set(words))
    cuts = [at for at in range(1, len(words)) if words[at][0].isalpha()]
    if not others or not cuts:
        return ()
    # The longest one first: a later question that goes on where another one ended would take its last block.
    chosen = sorted(draw.sample(cuts, min(NUM_QUESTIONS, len(cuts))), reverse=True)
    return tuple(
        CaseQuestion(f"{role}: {' '.join(words[:at])}", words[at], (words[at], draw.choice(others)), first_word_is)
        for at in chosen
    )


def _read(line: str, where: str) -> Texts:
    remedy = 'Each line is {"messages": [{"role": "user", "content": "..."}, ...]}.'
    try:
        found = json.loads(line)
    except ValueError as error:
        raise AcmError(f"{where} is no JSON: {error}. {remedy}") from None
    messages = found.get("messages") if isinstance(found, dict) else None
    if not isinstance(messages, list):
        raise AcmError(f"{where} has no list `messages`. {remedy}")
    return [(role, text) for role, text in (_text_of(message, where, remedy) for message in messages) if text]


def _text_of(message: Any, where: str, remedy: str) -> tuple[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise AcmError(f"{where}: {echo(message)} is no message. {remedy}")
    calls = message.get("tool_calls") or ()
    told = [json.dumps(call.get("function", call)) for call in calls if isinstance(call, dict)]
    return message["role"], "\n".join([*_parts(message.get("content")), *told]).strip()


def _parts(content: Any) -> Sequence[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
