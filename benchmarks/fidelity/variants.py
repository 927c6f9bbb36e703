"""The ways to serve an edited prompt that `acmserve bench fidelity` compares. Data; nothing here knows an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from acmserve.bench.fidelity.cases import CHAIN, FOLD, RESTORE, Case, CaseTurn

NUM_GREEDY = 32
EXACT, AGAIN, REUSE, AUTO = "exact", "exact again", "reuse", "auto"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to serve an edited prompt; `prompt` names the prompt of the turn that it is given.

    `repair` is that of the request, None leaves it out. `answers`: greedy answers are compared, too. What lies
    behind a cut has to be moved where `must_move` says so, up to what the repair computes.
    """

    name: str
    fidelity: str = "exact"
    repair: Mapping[str, Any] | None = None
    prompt: str = "prompt"
    turns_keys: bool = True
    must_move: bool = False
    answers: bool = True
    in_chains: bool = True

    @property
    def moves(self) -> bool:
        return self.fidelity != "exact"

    def fits(self, case: Case, turn: CaseTurn) -> bool:
        """Whether this way has something to say about a turn."""
        if case.kind == RESTORE:
            return self.name in (EXACT, REUSE)
        wanted = self.in_chains if case.kind == CHAIN else self.turns_keys or case.kind == FOLD
        return wanted and bool(getattr(turn, self.prompt))


def _repair(name: str, *, head: int = 0, tail: int = 0, echoes: bool = False, in_chains: bool = False) -> Variant:
    repair = {"head_tokens": head, "tail_tokens": tail, "echoes": echoes}
    return Variant(f"repair {name}", "repair", repair, answers=False, in_chains=in_chains)


VARIANTS = (
    Variant(EXACT),
    Variant(REUSE, "reuse", must_move=True),
    replace(_repair("head 128", head=128, in_chains=True), answers=True),
    _repair("head 256", head=256),
    _repair("tail 128", tail=128),
    _repair("echoes", echoes=True),
    _repair("head 64 + echoes", head=64, echoes=True),
    _repair("head 128 + echoes", head=128, echoes=True),
    Variant(AUTO, "auto"),
    Variant("other marker", prompt="reworded", in_chains=False),
    Variant("unedited", prompt="unedited", answers=False),
    Variant("S dropped", prompt="dropped", answers=False, in_chains=False),
    Variant("keys not turned", "reuse", turns_keys=False, must_move=True, answers=False, in_chains=False),
)
