"""Which edits a calibration serves: all whose tokens a model can be asked with. Found before the engine starts.

    generic edits, edits of conversations --tokenizer, window--> those that can be asked, and why others are left out

An edit that could not be asked would end the run where it is served, and lose what was served before it. Knows
tokenizers, no engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from acmserve.bench.calibrate.transcripts import MIN_QUESTIONS, OwnEdit
from acmserve.bench.tasks.generators.case import TaskCase
from acmserve.bench.tasks.prompt import CaseTokens, TokenizedCase, tokenize_case
from acmserve.errors import AcmError

FEWEST = 2
"""One half of the edits judges the other."""
GENERIC, OWN = "generic", "your own"
ALIKE = "the words of a question begin with the same token"
FEW_QUESTIONS = f"fewer than {MIN_QUESTIONS} questions have words that begin with tokens of their own"


@dataclass(frozen=True, slots=True)
class AskableEdits:
    """`left_out` has the number of edits for each reason. `name` says whose they are."""

    name: str
    edits: tuple[TokenizedCase, ...]
    left_out: dict[str, int]

    @property
    def num_all(self) -> int:
        """With those that are left out."""
        return len(self.edits) + sum(self.left_out.values())

    def __str__(self) -> str:
        """`58 of 60 edits (your own) can be asked; 2 left out: longer than 8192 tokens`."""
        why = "".join(f"; {num} left out: {reason}" for reason, num in self.left_out.items())
        return f"{len(self.edits)} of {self.num_all} edits ({self.name}) can be asked{why}"

    def check_enough(self, remedy: str) -> None:
        """Raise AcmError where there are too few."""
        if len(self.edits) < FEWEST:
            raise AcmError(f"{self}. {FEWEST} are needed, since one half judges the other. {remedy}")


def find_askable(name: str, cases: Sequence[TaskCase | None], tokenizer: Any, window: int) -> AskableEdits:
    """Of these cases, those that fit into `window` tokens with the answer's token. None is one with few questions."""
    edits: list[TokenizedCase] = []
    left_out: Counter[str] = Counter()
    for case in cases:
        if case is None:
            left_out[FEW_QUESTIONS] += 1
            continue
        try:
            tokens = tokenize_case(case, tokenizer)
        except AcmError:
            left_out[ALIKE] += 1
            continue
        if _longest_prompt(tokens) + 1 > window:
            left_out[f"longer than {window} tokens"] += 1
        else:
            edits.append(TokenizedCase(case, tokens))
    return AskableEdits(name, tuple(edits), dict(left_out))


def _longest_prompt(tokens: CaseTokens) -> int:
    return max(len(tokens.full), len(tokens.folded) + max(len(asked.tokens) for asked in tokens.asked))


def questions_line(own: Sequence[OwnEdit]) -> str | None:
    """What people read of questions that are not as they were drawn first. None where all are."""
    num_redrawn, num_dropped = (sum(getattr(edit, name) for edit in own) for name in ("num_redrawn", "num_dropped"))
    if not num_redrawn and not num_dropped:
        return None
    return (
        f"questions about your conversations: {num_redrawn} have another wrong word than the one drawn first, which "
        f"began with the same token as the right one; {num_dropped} are left out, since each word did"
    )
