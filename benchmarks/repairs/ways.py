"""The ways to serve an edited prompt that `bench repairs` compares. Data, and what each asks of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from acmserve.bench.repairs.control import lexical_ranges
from acmserve.bench.tasks.prompt import CaseTokens


@dataclass(frozen=True, slots=True)
class Way:
    """`repair` makes the repair of a request from the tokens of its case. `must_move`: what can move has to."""

    name: str
    fidelity: str
    repair: Callable[[CaseTokens], Mapping[str, Any]] | None = None
    must_move: bool = False

    @property
    def moves(self) -> bool:
        return self.fidelity != "exact"

    def parameters(self, tokens: CaseTokens) -> dict[str, Any]:
        """What stands in the request beside session and fidelity."""
        return {} if self.repair is None else {"repair": dict(self.repair(tokens))}


def _lexical(tokens: CaseTokens) -> dict[str, Any]:
    ranges = lexical_ranges(tokens.folded, tokens.suffix_spans, tokens.asked[0].tokens)
    return {"head_tokens": 0, "rest_tokens": 1, "ranges": ranges}


def _last_pieces(tokens: CaseTokens) -> dict[str, Any]:
    return {"head_tokens": 0, "rest_tokens": 1, "ranges": [list(span) for span in tokens.suffix_spans[-2:]]}


def _heads(tokens: CaseTokens) -> dict[str, Any]:
    return {"head_tokens": 4, "rest_tokens": 1}


EXACT = Way("exact", "exact")
REUSE = Way("reuse", "reuse", must_move=True)
CONTROL = Way("question's words", "repair", _lexical)
AUTO = Way("auto", "auto")
WAYS = (EXACT, REUSE, CONTROL, AUTO)
CHEAP = (Way("last two pieces", "repair", _last_pieces), Way("heads of 4", "repair", _heads))
"""Repairs of a few tokens, where an edit leaves many pieces: what is read last, and what stands behind each hole."""
