"""Why the source store dropped sources of a session, for the receipt of that session's next request.

Holds digests of owners, never their names, and only of the last `max_owners`. An older note is lost. The receipt of
such a session then says nothing. It knows neither sources nor bounds.
"""

from __future__ import annotations

from collections import OrderedDict

from acmserve.errors import IntegrityError
from acmserve.plan.lineage import digest
from acmserve.plan.owner import Owner


class DroppedOwners:
    """Reasons by owner, the last one noted at the end."""

    def __init__(self, max_owners: int) -> None:
        self._max_owners = max_owners
        self._reasons: OrderedDict[bytes, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._reasons)

    def note(self, owner: Owner, reason: str) -> None:
        """A source of `owner` was dropped."""
        key = digest(owner)
        self._reasons[key] = reason
        self._reasons.move_to_end(key)
        while len(self._reasons) > self._max_owners:
            self._reasons.popitem(last=False)

    def take(self, owner: Owner) -> str | None:
        """The last reason noted for `owner`, once. None where there is none."""
        return self._reasons.pop(digest(owner), None)

    def clear(self) -> None:
        """Nothing was dropped."""
        self._reasons.clear()

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when there are more notes than allowed."""
        if len(self) > self._max_owners:
            raise IntegrityError(f"dropped owners: {len(self)} noted, {self._max_owners} allowed")
