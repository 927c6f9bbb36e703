"""Tokens of a case: the full context, the folded one, and what each question adds. Knows tokenizers, no engine.

    full     [piece][  folded piece  ][piece]               the history: read first, so that there is KV to move
    folded   [piece][marker][      piece     ]
    asked    [either of them][question, and the beginning of its answer]

Every part is tokenized by itself, so what follows a fold has the same tokens with and without it. The prompt is plain
text, without a chat template: small models continue text much better than they answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from acmserve.bench.tasks.generators.case import CaseQuestion, TaskCase
from acmserve.context.session.marker import folded as fold_marker
from acmserve.errors import AcmError
from acmserve.validation import echo

Tokens = tuple[int, ...]
Span = tuple[int, int]
MAX_CHOICES = 128


@dataclass(frozen=True, slots=True)
class AskedTokens:
    """What a question adds to a context, and the first token of each choice. `dropped` shared theirs with another."""

    tokens: Tokens
    first_tokens: dict[str, int]
    dropped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CaseTokens:
    """`suffix_spans` are the tokens of `folded` that stand behind a fold and were read before: what a move can move."""

    full: Tokens
    folded: Tokens
    suffix_spans: tuple[Span, ...]
    num_folded: int
    asked: tuple[AskedTokens, ...]

    @property
    def num_suffix(self) -> int:
        """Tokens behind the first fold that stay."""
        return sum(end - start for start, end in self.suffix_spans)


@dataclass(frozen=True, slots=True)
class TokenizedCase:
    """A case that can be asked of a model, with its tokens there."""

    case: TaskCase
    tokens: CaseTokens


def tokenize_cases(cases: Iterable[TaskCase], tokenizer: Any) -> list[TokenizedCase]:
    """All of them, before the first is served: one that cannot be asked costs no others. Raises AcmError for it."""
    return [TokenizedCase(case, tokenize_case(case, tokenizer)) for case in cases]


def first_token(choice: str, tokenizer: Any) -> int | None:
    """What tells a choice from others, as it stands behind a question. None where the tokenizer knows nothing of it."""
    return next(iter(_encode(tokenizer, f" {choice}")), None)


def tokenize_case(case: TaskCase, tokenizer: Any) -> CaseTokens:
    """With a Hugging Face tokenizer. Raises AcmError when too few choices can be told apart by their first token."""
    full = folded = tuple(tokenizer("").input_ids)
    spans: list[Span] = []
    num_folded = 0
    for number, piece in enumerate(case.pieces):
        tokens = _encode(tokenizer, piece.text)
        full += tokens
        if piece.is_folded:
            num_folded += len(tokens)
            if piece.has_marker:
                (marker,) = fold_marker(f"f{number:05x}", len(tokens), 1, "sculptor")
                folded += _encode(tokenizer, marker + "\n")
        else:
            if num_folded:
                spans.append((len(folded), len(folded) + len(tokens)))
            folded += tokens
    asked = tuple(_asked(question, tokenizer, case.name) for question in case.questions)
    return CaseTokens(full, folded, tuple(spans), num_folded, asked)


def _asked(question: CaseQuestion, tokenizer: Any, name: str) -> AskedTokens:
    first: dict[str, int] = {}
    dropped = []
    for choice in (question.gold, *(choice for choice in question.choices if choice != question.gold)):
        token = first_token(choice, tokenizer)
        if token is None or token in first.values():
            dropped.append(choice)
        else:
            first[choice] = token
    if question.gold not in first or not 2 <= len(first) <= MAX_CHOICES:
        raise AcmError(
            f"{name}, choices of {echo(question.gold)}: {len(first)} choices have a first token of their own; "
            f"2 to {MAX_CHOICES} are needed. Name a model with another tokenizer, or leave the case out."
        )
    return AskedTokens(_encode(tokenizer, question.text), first, tuple(dropped))


def _encode(tokenizer: Any, text: str) -> Tokens:
    return tuple(tokenizer(text, add_special_tokens=False, verbose=False).input_ids)
