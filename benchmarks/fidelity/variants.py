"""The ways to serve an edited prompt that `acmserve bench fidelity` compares. Data. Nothing here knows an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from acmserve.bench.fidelity.cases import RESTORE, Case, CaseTurn

EXACT, AGAIN, REUSE, AUTO = "exact", "exact again", "reuse", "auto"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to serve an edited prompt. `prompt` names the prompt of the turn that it is given.

    `repair` is that of the request, None leaves it out.
    """

    name: str
    fidelity: str = "exact"
    repair: Mapping[str, Any] | None = None
    prompt: str = "prompt"

    @property
    def moves(self) -> bool:
        return self.fidelity != "exact"

    def fits(self, case: Case, turn: CaseTurn) -> bool:
        """Whether this way has something to say about a turn."""
        return self.name in (EXACT, REUSE) if case.kind == RESTORE else bool(getattr(turn, self.prompt))


VARIANTS = (
    Variant(EXACT),
    Variant(REUSE, "reuse"),
    Variant("repair head 128", "repair", {"head_tokens": 128, "tail_tokens": 0, "echoes": False}),
    Variant(AUTO, "auto"),
    Variant("other marker", prompt="reworded"),
    Variant("unedited", prompt="unedited"),
)
