"""Matches the messages that a client sent with those that it held before: the same, a changed version, or new.

    old    system(git A)  user 1  assistant 1  result 1  user 2 + reminder
    new    system(git B)  user 1  assistant 1  [cleared]  user 2            user 3
           CHANGED        SAME    SAME         REPLACED   CHANGED           new

The same messages are found by their digests (`anchors.py`). What is left is compared with what stood in the same place:
between the same two messages, or beside a message that has moved. `CHANGED` is a version of one (`likeness.py`).
`REPLACED` stands in the place of another message of its role and says something else.

Decision: the characters that are compared are bounded. Where many messages between two known ones have changed, only
the first and the last ones are compared.

It knows neither sessions nor edits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from acmserve.context.alignment.anchors import pair_equal
from acmserve.context.alignment.likeness import Sketch, likeness
from acmserve.context.transcript.message import Message

_MAX_PRODUCT = 256
_MAX_COMPARED_CHARS = 20_000_000


class MatchKind(Enum):
    """What a message of a client is to the old one."""

    SAME = "same"
    CHANGED = "changed"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class MessageMatch:
    """The old message, by its position, that a new one is or stands for."""

    old: int
    kind: MatchKind

    @property
    def is_known(self) -> bool:
        """Whether it is the old message, if in other words."""
        return self.kind is not MatchKind.REPLACED


Matches = list[MessageMatch | None]


def match_messages(
    old_digests: Sequence[bytes], old: Sequence[Message], new_digests: Sequence[bytes], new: Sequence[Message]
) -> Matches:
    """For each new message the old one that it stands for, None where it is new. None stands for two of them."""
    matches: Matches = [
        None if at is None else MessageMatch(at, MatchKind.SAME) for at in pair_equal(old_digests, new_digests)
    ]
    if len(old) and any(match is None for match in matches):
        _Changed(old, new, matches).match()
    return matches


class _Changed:
    """Finds the changed messages among those that no digest has found."""

    def __init__(self, old: Sequence[Message], new: Sequence[Message], matches: Matches) -> None:
        self._old, self._new, self._matches = old, new, matches
        self._taken = {match.old for match in matches if match is not None}
        self._sketches: dict[tuple[bool, int], Sketch] = {}
        self._num_compared = 0

    def match(self) -> None:
        gaps = self._gaps()
        for missing_old, missing_new in gaps:
            self._pair_alike(missing_old, missing_new)
        self._pair_beside_moved(MatchKind.CHANGED)
        for missing_old, missing_new in gaps:
            self._pair_places(missing_old, missing_new)
        self._pair_beside_moved(MatchKind.REPLACED)

    def _gaps(self) -> list[tuple[list[int], list[int]]]:
        """The old and new messages without a match between two neighbours of a longest common order."""
        gaps: list[tuple[list[int], list[int]]] = []
        behind = self._first_old_behind()
        previous, missing = -1, list[int]()
        for at in range(len(self._new) + 1):
            match = self._matches[at] if at < len(self._new) else None
            if at < len(self._new) and match is None:
                missing.append(at)
                continue
            end = len(self._old) if match is None else match.old
            if match is not None and (end <= previous or end >= behind[at]):
                continue
            if missing:
                gaps.append(([old for old in range(previous + 1, end) if old not in self._taken], missing))
            previous, missing = max(previous, end), []
        return gaps

    def _first_old_behind(self) -> list[int]:
        """For each new message where the known messages behind it begin. What lies behind that has moved."""
        lowest = len(self._old)
        found = [lowest] * len(self._new)
        for at in range(len(self._new) - 1, -1, -1):
            found[at] = lowest
            match = self._matches[at]
            if match is not None:
                lowest = min(lowest, match.old)
        return found

    def _pair_alike(self, missing_old: list[int], missing_new: list[int]) -> None:
        """Versions of one message: those that share the most text first."""
        if len(missing_old) * len(missing_new) > _MAX_PRODUCT:
            for way in (1, -1):
                for old, new in zip(missing_old[::way], missing_new[::way], strict=False):
                    self._pair(old, new, MatchKind.CHANGED)
            return
        found = [(-self._likeness(old, new), abs(old - new), old, new) for old in missing_old for new in missing_new]
        for score, _, old, new in sorted(found):
            if score and self._matches[new] is None and old not in self._taken:
                self._set(old, new, MatchKind.CHANGED)

    def _pair_beside_moved(self, kind: MatchKind) -> None:
        """What stands beside a known message, wherever that stands now."""
        for new, match in enumerate(self._matches[:]):
            if match is None or not match.is_known:
                continue
            for step in (-1, 1):
                if 0 <= new + step < len(self._new) and 0 <= match.old + step < len(self._old):
                    self._pair(match.old + step, new + step, kind)

    def _pair_places(self, missing_old: list[int], missing_new: list[int]) -> None:
        """What is left: in each gap the messages of a role in order."""
        waiting: dict[object, list[int]] = {}
        for old in reversed(missing_old):
            if old not in self._taken:
                waiting.setdefault(self._old[old].get("role"), []).append(old)
        for new in missing_new:
            places = waiting.get(self._new[new].get("role"))
            if places and self._matches[new] is None:
                self._set(places.pop(), new, MatchKind.REPLACED)

    def _pair(self, old: int, new: int, kind: MatchKind) -> bool:
        if self._matches[new] is not None or old in self._taken:
            return False
        is_role = self._old[old].get("role") == self._new[new].get("role")
        if not is_role or (kind is MatchKind.CHANGED and not self._likeness(old, new)):
            return False
        self._set(old, new, kind)
        return True

    def _set(self, old: int, new: int, kind: MatchKind) -> None:
        self._matches[new] = MessageMatch(old, kind)
        self._taken.add(old)

    def _likeness(self, old: int, new: int) -> int:
        is_role = self._old[old].get("role") == self._new[new].get("role")
        if not is_role or self._num_compared >= _MAX_COMPARED_CHARS:
            return 0
        before, after = self._sketch(False, old), self._sketch(True, new)
        self._num_compared += len(before.text) + len(after.text)
        return likeness(before, after)

    def _sketch(self, is_new: bool, at: int) -> Sketch:
        key = (is_new, at)
        if key not in self._sketches:
            self._sketches[key] = Sketch((self._new if is_new else self._old)[at])
        return self._sketches[key]
