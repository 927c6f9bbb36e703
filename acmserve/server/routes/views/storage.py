"""What a route says where the sessions' file could not be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from acmserve.context.storage.map_store import HeldMap
from acmserve.context.storage.session import Session
from acmserve.errors import StorageFailed
from acmserve.server.http.unsaved import storage_fields
from acmserve.server.routes.schemas.storage import StorageView


def storage_view(kept: Session | HeldMap) -> StorageView | None:
    """The warning of a session or a map, None where there is nothing to say."""
    fields = storage_fields(kept)
    return StorageView.model_validate(fields["storage"]) if fields else None


def deletion_view(failure: StorageFailed | None, what: str) -> StorageView | None:
    """The warning of an answer that is given although a deletion in it failed. None where it did not."""
    if failure is None:
        return None
    refusal = still_held(failure, what)
    said = {"saved": False, "reason": refusal.reason, "warning": f"{refusal.problem} {refusal.remedy}"}
    return StorageView.model_validate(said)


@contextmanager
def deleting(what: str) -> Iterator[None]:
    """A deletion happens. Raises what `still_held` says where the file cannot be written."""
    try:
        yield
    except StorageFailed as failure:
        raise still_held(failure, what) from failure


def still_held(failure: StorageFailed, what: str = "session") -> StorageFailed:
    """The failure of a deletion: what was deleted is gone, its text is not."""
    refusal = failure.bare()
    refusal.problem = f"The {what} is deleted, but the server's disk may still hold its text: {failure.problem}"
    refusal.remedy = f"{failure.remedy} Then delete the {what} again, which erases the text."
    return refusal
