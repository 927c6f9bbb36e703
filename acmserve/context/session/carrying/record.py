"""An edit that a changed history did not keep: what it was, its id, and why, in words.

Every edit that cannot be kept is told once, as a record. It becomes `acm.dropped` in the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EditKind = Literal["fragment", "redaction", "omission", "branch", "turn", "search_results"]

REMOVED = "its message is no longer in the history."
CHANGED = "its text no longer stands in the message."
OVERLAPS = "its text overlaps another fragment or a redaction now."


@dataclass(frozen=True, slots=True)
class DroppedEdit:
    """`kind` says what `edit_id` names: a fragment, the call of a branch, a turn's number. "" is several things."""

    kind: EditKind
    edit_id: str
    reason: str

    def as_dict(self) -> dict[str, str]:
        """The record as JSON."""
        return {"kind": self.kind, "id": self.edit_id, "reason": self.reason}
