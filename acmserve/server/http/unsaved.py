"""What an answer says of a session, or of a context map, that the file lacks.

    unsaved --> {"saved": false, "reason": "full", "warning": "..."}    nothing where all is well

No path of the server is in it.
"""

from __future__ import annotations

from typing import Any

from acmserve.context.storage.map_store import HeldMap
from acmserve.context.storage.session import Session


def storage_fields(kept: Session | HeldMap) -> dict[str, Any]:
    """The field `storage` of an answer. Nothing where the file has it, or where there is none."""
    failure = kept.unsaved
    if failure is None:
        return {}
    warning = f"The change is made, but a restart may lose it or bring removed text back: {failure.problem}"
    return {"storage": {"saved": False, "reason": failure.reason, "warning": f"{warning} {failure.remedy}"}}
