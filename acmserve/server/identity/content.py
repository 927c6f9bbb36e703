"""Finds the conversation that a request goes on with, by content alone: an index of hashes, one for each tenant.

    conversation   [ u0 u1 u2 u3 u4 ]      known by the chain hash of all of it, by its last units, and by its answer
    request        [ u0 u1 u2 u3 u4 a5 u6 ]     c4 is known                 --> goes on with it, exactly
    request        [ x0 u1 u2 u3 u4 a5 u6 ]     u3, u4 are known: compared  --> goes on with it, if they share enough

Found is the conversation of which a request has most, among those that it *continues* (`fingerprint.py`). Two
conversations that begin alike are told apart by their ends, and by the answers that were given to them. A request that
goes on from the middle of one is a new conversation, if it is no task about its first part (`beginnings.py`). A request
that is the very next of a conversation belongs there, though another conversation may have ended with the same words. A
task that is run again repeats them.

Decision: a first message alone is shared by many conversations. A request in which the model has said nothing finds
none, and neither does one that has another answer to it. What people say in many conversations, a step of a task or a
request for a summary, proves nothing. A request must have a part of what the model said as well. Words that a client
puts into the model's mouth, as it opens each conversation, prove nothing either. So a run that begins as another one
does, while that one waits for its answer, is a session of its own. So is a run that has another session's answer only.
System text and tools count nothing here, for every agent of a kind has them. A tenant finds its own conversations only:
each one has an index of its own, so that no other's can be met.

The cost of a request is one look for each unit, and at most `2 * MAX_COMPARED` conversations that are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import compress

from acmserve.server.identity.beginnings import Beginnings
from acmserve.server.identity.fingerprint import (
    MIN_SHARE,
    MIN_SHARED_CHARS,
    TAIL,
    Fingerprint,
    HistoryLikeness,
    compare_history,
)
from acmserve.server.identity.names_by_hash import NamesByHash
from acmserve.server.identity.prompt import PromptUnits

MAX_COMPARED = 8
_MAX_LISTED = 64
_MAX_COUNTED = 1024
_MAX_EXCHANGED = 32
"""Units at the end of a conversation among which something must be said as in a request."""


class ContentIndex:
    """The conversations of one tenant, by name. `num_looked` and `num_compared` count the work that was done."""

    def __init__(self) -> None:
        self._names = NamesByHash()
        self._beginnings = Beginnings()
        self._openings = NamesByHash()
        self.num_looked = 0
        self.num_compared = 0

    def add(self, name: str, conversation: Fingerprint) -> None:
        """Let a conversation be found, as the newest."""
        self._names.enter(name, _marks(conversation))
        self._beginnings.add(name, conversation)
        self._openings.enter(name, _opening(conversation))

    def remove(self, name: str, conversation: Fingerprint) -> None:
        """Let it be found no more."""
        self._names.leave(name, _marks(conversation))
        self._beginnings.remove(name, conversation)
        self._openings.leave(name, _opening(conversation))

    def __len__(self) -> int:
        """Hashes that are known."""
        return len(self._names) + len(self._beginnings) + len(self._openings)

    def check_integrity(self, conversations: Mapping[str, Fingerprint]) -> None:
        """Raise `IntegrityError` with the numbers unless these are listed, each by what it ends and begins with."""
        self._names.check_integrity("content", conversations, _marks)
        self._openings.check_integrity("openings", conversations, _opening)
        self._beginnings.check_integrity(conversations)

    def find(
        self, prompt: PromptUnits, conversations: Mapping[str, Fingerprint], has_anothers: Callable[[str], bool]
    ) -> tuple[str, bool] | None:
        """The name of the conversation that a request goes on with, and whether it does so word for word.

        None where there is none, and for a request in which the model has said nothing. `has_anothers` says of a name
        whether the request has what this server has answered to another session than that.
        """
        if prompt.begins:
            return None
        best: tuple[tuple[int, ...], str] | None = None
        num_leading = -1
        for number, name in enumerate(self._candidates(prompt)):
            conversation = conversations[name]
            likeness = compare_history(conversation, prompt)
            self.num_compared += likeness.num_compared
            if self._is_another_run(conversation, likeness, prompt) or not _is_enough(conversation, likeness, prompt):
                continue
            has_none_of_its = not conversation.ours and prompt.weights.keys().isdisjoint(conversation.answer)
            if has_none_of_its and has_anothers(name):
                continue
            is_next = _is_next(conversation, likeness, prompt)
            rank = (is_next, likeness.num_shared, likeness.is_answered, conversation.tools == prompt.tools, -number)
            if best is None or rank > best[0]:
                best, num_leading = (rank, name), likeness.num_leading
        begun = self._beginnings.find(prompt, conversations)
        if begun is not None and begun[0] > num_leading:
            return None if begun[1] is None else (begun[1], False)
        return None if best is None else (best[1], num_leading == len(conversations[best[1]].digests))

    def _is_another_run(self, conversation: Fingerprint, likeness: HistoryLikeness, prompt: PromptUnits) -> bool:
        """Whether a request may begin as a conversation does, and be another one.

        It may where no answer of this server stands in the conversation, nor the one that was given to it in the
        request. Then it is one if others open with the same words, as tasks without tools always do. It is one, too, if
        the model says nothing more in it. Only a request that comes again before its answer is none, where it has more
        than an opening.
        """
        if likeness.is_answered or conversation.ours:
            return False
        if not any(prompt.answers[likeness.num_leading :]):
            return bool(conversation.answer) or not _shares_an_exchange(conversation, prompt)
        marks = _opening(conversation)
        return bool(conversation.answer) and (not marks or len(self._openings[marks[0]]) > 1)

    def _candidates(self, prompt: PromptUnits) -> list[str]:
        """Those of which a request has the end: by the chain the longest and newest first, then by most of the end.

        Where the chain knows three quarters of the request, nothing else is looked for. A unit that few conversations
        end with counts more than one that many do, and one that a request repeats counts once.
        """
        exact: dict[str, None] = {}
        longest = 0
        for number, mark in self._known(prompt.chain):
            longest = longest or number
            exact |= dict.fromkeys(list(reversed(self._names[mark]))[:_MAX_LISTED])
            if len(exact) >= MAX_COMPARED:
                break
        if longest * 4 >= len(prompt) * 3:
            return list(exact)[:MAX_COMPARED]
        counts: Counter[str] = Counter()
        num_counted = 0
        for _, mark in self._known(tuple(prompt.weights)):
            names = self._names[mark]
            if len(names) <= _MAX_LISTED and num_counted < _MAX_COUNTED:
                counts.update(dict.fromkeys(names, _MAX_LISTED // len(names)))
                num_counted += len(names)
        changed = [name for name, _ in counts.most_common(2 * MAX_COMPARED) if name not in exact]
        return [*list(exact)[:MAX_COMPARED], *changed[:MAX_COMPARED]]

    def _known(self, marks: Sequence[int]) -> list[tuple[int, int]]:
        """Those that are listed with their place, counted from 1, the last first. All are looked up at C speed."""
        self.num_looked += len(marks)
        places = compress(range(1, len(marks) + 1), map(self._names.__contains__, marks))
        return [(place, marks[place - 1]) for place in places][::-1]


def _marks(conversation: Fingerprint) -> set[int]:
    """The hashes under which a conversation is listed."""
    return {*conversation.digests[-TAIL:], *conversation.chain[-1:], *conversation.answer}


def _opening(conversation: Fingerprint) -> tuple[int, ...]:
    """The hash of what a conversation with tools opens with, up to the first words of its model."""
    number = conversation.num_opening
    return (conversation.chain[number - 1],) if number and conversation.tools else ()


def _is_next(conversation: Fingerprint, likeness: HistoryLikeness, prompt: PromptUnits) -> bool:
    """Whether a request is a conversation, its answer, and what was said to that."""
    num_units = len(conversation.digests)
    if likeness.num_leading < num_units or not likeness.is_answered:
        return False
    return sum(prompt.answers[num_units:]) == len(conversation.answer)


def _is_enough(conversation: Fingerprint, likeness: HistoryLikeness, prompt: PromptUnits) -> bool:
    if not likeness.continues:
        return False
    if likeness.num_leading == len(conversation.digests):
        return True
    if likeness.num_shared < max(MIN_SHARED_CHARS, min(conversation.num_chars, prompt.num_chars) // MIN_SHARE):
        return False
    spoken = prompt.spoken_weights
    num_spoken_chars = sum(map(spoken.__getitem__, spoken.keys() & likeness.shared))
    if num_spoken_chars < min(conversation.num_spoken_chars, prompt.num_spoken_chars) // MIN_SHARE:
        return False
    if not conversation.answer or likeness.is_answered:
        return True
    if tuple(conversation.digests[-2:]) not in prompt.pairs:
        return False
    return conversation.ours in prompt.weights if conversation.ours else _shares_an_exchange(conversation, prompt)


def _shares_an_exchange(conversation: Fingerprint, prompt: PromptUnits) -> bool:
    """Whether the model says something behind the same unit in both, behind what many conversations may open with."""
    start = max(1, conversation.num_opening, len(conversation.digests) - _MAX_EXCHANGED)
    pairs = prompt.pairs.intersection(
        zip(conversation.digests[start - 1 :], conversation.digests[start:], strict=False)
    )
    return any(digest in prompt.spoken_weights for _, digest in pairs)
