"""The sessions that the file has, as their store sees them: which there are, which go, and what must still be erased.

    save      --.                          .--> the file has it, and what its bound dropped is gone
    erase       ---> one transaction -----|
    flush     --'                          '--> StorageFailed: what is to be erased is remembered, and tried again

Decision: a session that is to be erased is not found from that moment on, whether the file could be written or not. The
caller learns by `StorageFailed` that its text is still there. A session that is read while the log may have text that
left it is `unsaved`, and the file is not behind. That holds until its next save, also where others empty the log. The
module knows heads and bounds, not what is in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from acmserve.context.session.state import SessionState
from acmserve.context.storage.codecs.rows import StateChange, plan_whole
from acmserve.context.storage.fair_share import plan_victims
from acmserve.context.storage.head import SessionHead, head_of
from acmserve.context.storage.session import Bound, Key, Session
from acmserve.context.storage.sqlite import Archive
from acmserve.errors import AcmError, IntegrityError, NotFound, StorageFailed


class StoredSessions:
    """`archive` belongs to it from then on. Sessions are in the order of their use, the oldest first.

    `_written` has those that the file has whole and that were told as `unsaved`, each with why. It is None behind a log
    that is empty again.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._heads: OrderedDict[Key, SessionHead] = OrderedDict((head.key, head) for head in archive.stored())
        self._num_bytes = sum(head.num_bytes for head in self._heads.values())
        self._touched: set[Key] = set()
        self._erased: dict[Key, None] = {}
        self._in_log: dict[Key, None] = {}
        self._written: dict[Key, StorageFailed | None] = {}
        self._must_empty_log = False

    def __len__(self) -> int:
        return len(self._heads)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._heads)

    def used_at(self, key: Key) -> float | None:
        """When a session was used last. None where there is none."""
        head = self._heads.get(key)
        return None if head is None else head.used_at

    def touch(self, key: Key, used_at: float) -> None:
        """A session was used. Written when the file is closed."""
        if key in self._heads:
            self._heads[key] = replace(self._heads[key], used_at=used_at)
            self._heads.move_to_end(key)
            self._touched.add(key)

    def sizes(self) -> dict[Key, int]:
        """Bytes of every session."""
        return {key: head.num_bytes for key, head in self._heads.items()}

    def newest(self, bound: Bound) -> list[Key]:
        """As many as a bound allows, the one used last first."""
        kept: list[Key] = []
        num_bytes = 0
        for key, head in reversed(self._heads.items()):
            num_bytes += head.num_bytes
            if len(kept) == bound.max_sessions or num_bytes > bound.max_bytes:
                break
            kept.append(key)
        return kept

    def heads(self, tenant: str) -> dict[Key, SessionHead]:
        """The sessions of a tenant."""
        return {key: head for key, head in self._heads.items() if key[0] == tenant}

    def read(self, key: Key) -> Session:
        """A session of the file. Raises `StorageFailed`, and `NotFound` where the file has lost it meanwhile."""
        try:
            session = self._archive.read(key)
        except (NotFound, StorageFailed):
            raise
        except AcmError as error:
            raise StorageFailed(
                str(error),
                "damaged",
                f"has a damaged copy of session {key[1]!a}",
                "Delete the session, take another id, or restore the file from a backup.",
            ) from error
        session.used_at, session.unsaved = self._heads[key].used_at, self._written.get(key)
        return session

    def plan_victims(self, bound: Bound, keep: Key, num_bytes: int, is_used: Callable[[Key], bool]) -> Sequence[Key]:
        """What the file's bound takes when `keep` is there with so many bytes."""
        before = self._heads.get(keep)
        total = self._num_bytes + num_bytes - (0 if before is None else before.num_bytes)
        if len(self) + (before is None) <= bound.max_sessions and total <= bound.max_bytes:
            return ()
        return plan_victims(self.sizes() | {keep: num_bytes}, bound, lambda key: key == keep or is_used(key))

    def save(
        self, session: Session, state: SessionState, used_at: float, change: StateChange, dropped: Sequence[Key]
    ) -> None:
        """Write a session, and drop others. One transaction. Raises `StorageFailed`, and nothing was dropped then."""
        self._written.pop(session.key, None)
        gone = [key for key in self._erased if key in self._archive]
        self._archive.save(session, state, used_at, change, [*gone, *dropped])
        self._forget(dropped)
        self._rows_are_gone()
        self._must_empty_log = self._must_empty_log or change.removes_text

    def heal(self, sessions: Sequence[Session], tried: Callable[[Callable[[], None]], StorageFailed | None]) -> None:
        """Write sessions whole that are `unsaved`, as long as that succeeds, and flush. `tried` says what failed.

        Of one that `is_behind` no more, the log alone may have text that left it.
        """
        healed: list[Session] = []
        for session in sessions:
            failure = tried(partial(self._save_whole, session)) if self.is_behind(session) else None
            if failure is not None:
                session.unsaved = failure
                break
            healed.append(session)
        unflushed = tried(partial(self.flush, [session.key for session in healed])) if healed else None
        for session in healed:
            session.unsaved = unflushed

    def is_behind(self, session: Session) -> bool:
        """Whether the file has not what a session is."""
        return session.unsaved is not None and session.key not in self._written

    def saved(self, session: Session) -> None:
        """Note what `save` has written, once the session itself has it."""
        self._remove(session.key)
        self._heads[session.key] = head_of(session)
        self._num_bytes += session.num_bytes

    def erase(self, keys: Sequence[Key], *, at_once: bool) -> None:
        """Drop sessions, and with `at_once` their text from the log, too. Raises `StorageFailed`. See the module."""
        self._forget(keys)
        self._must_empty_log = self._must_empty_log or at_once
        self.flush()

    def is_erasing(self, key: Key) -> bool:
        """Whether a session is gone whose text the file may still hold."""
        return key in self._erased or key in self._in_log

    def flush(self, written: Sequence[Key] = ()) -> None:
        """Erase what could not be erased before. Raises `StorageFailed`.

        The file has the sessions that are `written`. Where it fails, its log may have text that left them.
        """
        try:
            self._flush()
        except StorageFailed as failure:
            self._written |= dict.fromkeys(written, failure.bare())
            raise

    def _flush(self) -> None:
        gone = [key for key in self._erased if key in self._archive]
        if gone:
            self._archive.drop(gone)
        self._rows_are_gone()
        if self._must_empty_log:
            self._archive.empty_log()
            self._must_empty_log = False
        self._in_log.clear()
        self._written = dict.fromkeys(self._written)

    def close(self) -> None:
        """Write when sessions were used last, and give the file back."""
        try:
            self._archive.touch({key: self._heads[key].used_at for key in self._touched})
        finally:
            self._archive.close()

    def check_integrity(self, sessions: Sequence[Session]) -> None:
        """Raise `IntegrityError` when heads and file disagree, or the file and the sessions in memory that it has."""
        stored = {head.key: head.num_bytes for head in self._archive.stored() if head.key not in self._erased}
        if stored != self.sizes() or self._num_bytes != sum(stored.values()):
            raise IntegrityError(
                f"store: {len(self)} sessions of {self._num_bytes} bytes, the archive has {len(stored)} of "
                f"{sum(stored.values())}, not the same ones"
            )
        for session in sessions:
            if session.unsaved is not None:
                continue
            if session.key not in stored:
                raise IntegrityError(f"store: {session.session_id!a} is in memory, and not in the archive")
            found = self._archive.read(session.key)
            if (found.state, found.turns) != (session.state, session.turns):
                raise IntegrityError(
                    f"store: {session.session_id!a} has {len(session.state.entries)} entries of {session.num_bytes} "
                    f"bytes, in the archive {len(found.state.entries)} of {found.num_bytes}, and turns "
                    f"{session.turns.next_index}, {found.turns.next_index}"
                )

    def _save_whole(self, session: Session) -> None:
        self.save(session, session.state, session.used_at, plan_whole(session.state, session.turns), ())
        self.saved(session)

    def _forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            if self._remove(key):
                self._erased[key] = None

    def _remove(self, key: Key) -> bool:
        head = self._heads.pop(key, None)
        if head is not None:
            self._num_bytes -= head.num_bytes
            self._touched.discard(key)
            self._written.pop(key, None)
        return head is not None

    def _rows_are_gone(self) -> None:
        """What was to be erased is at most in the write-ahead log."""
        self._in_log |= self._erased
        self._erased.clear()
