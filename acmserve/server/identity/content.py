"""Finds the conversation that a request goes on with, by content alone: an index of hashes, one for each tenant.

    conversation   [ u0 u1 u2 u3 u4 ]      known by the chain hash of all of it, and by each of its last units
    request        [ u0 u1 u2 u3 u4 a5 u6 ]     c4 is known                 --> goes on with it, exactly
    request        [ x0 u1 u2 u3 u4 a5 u6 ]     u3, u4 are known: compared  --> goes on with it, if they share enough

Found is the conversation of which a request has most, among those that it *continues* (`fingerprint.py`). Two
conversations that begin alike are told apart by their ends, and by the answers that were given to them. A request that
goes on from the middle of one is a new conversation, if it is no task about its first part (`beginnings.py`). One that
is the very next of a conversation belongs there, though another conversation may have ended with the same words: a task
that is run again repeats them.

Decision: a first message alone is shared by many conversations. A request that only repeats it finds none, one that has
another answer to it finds none either, and nor does a title request of another agent. What people say in many
conversations, a step of a task or a request for a summary, proves nothing: a request must have a part of what the model
said as well. Words that a client puts into the model's mouth, as it opens each conversation, prove nothing either.
System text and tools count nothing here, for every agent of a kind has them. A tenant finds its own conversations only:
each one has an index of its own, so that no other's can be met.

The cost of a request is one look for each unit, and at most `2 * MAX_COMPARED` conversations that are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, pairwise

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

    def find(self, prompt: PromptUnits, conversations: Mapping[str, Fingerprint]) -> tuple[str, bool] | None:
        """The name of the conversation that a request goes on with, and whether it does so word for word.

        None where there is none.
        """
        best: tuple[tuple[int, ...], str] | None = None
        num_leading = -1
        for number, name in enumerate(self._candidates(prompt)):
            conversation = conversations[name]
            likeness = compare_history(conversation, prompt)
            self.num_compared += likeness.num_compared
            if self._is_another_run(conversation, likeness, prompt) or not _is_enough(conversation, likeness, prompt):
                continue
            is_next = _is_next(conversation, likeness, prompt)
            rank = (is_next, likeness.num_shared, likeness.is_answered, conversation.tools == prompt.tools, -number)
            if best is None or rank > best[0]:
                best, num_leading = (rank, name), likeness.num_leading
        begun = self._beginnings.find(prompt, conversations)
        if begun is not None and begun[0] > num_leading:
            return begun[1], False
        return None if best is None else (best[1], num_leading == len(conversations[best[1]].digests))

    def _is_another_run(self, conversation: Fingerprint, likeness: HistoryLikeness, prompt: PromptUnits) -> bool:
        """Whether a request begins as a conversation does, and has not the answer that was given to that.

        It is, where nothing else tells the two apart: no answer of this server stands in the conversation, and others
        open with the same words. Tasks without tools always do.
        """
        if not conversation.answer or likeness.is_answered or prompt.begins or conversation.ours:
            return False
        marks = _opening(conversation)
        has_none = not any(prompt.answers[likeness.num_leading :])
        return not marks or has_none or len(self._openings[marks[0]]) > 1

    def _candidates(self, prompt: PromptUnits) -> list[str]:
        """Those of which a request has the end: by the chain the longest and newest first, then by most of the end.

        Where the chain knows three quarters of the request, nothing else is looked for. A unit that a request repeats
        counts once.
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
                counts.update(names.keys())
                num_counted += len(names)
        changed = [name for name, _ in counts.most_common(2 * MAX_COMPARED) if name not in exact]
        return [*list(exact)[:MAX_COMPARED], *changed[:MAX_COMPARED]]

    def _known(self, marks: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Those that are listed with their place, counted from 1, the last first. All are looked up at C speed."""
        self.num_looked += len(marks)
        is_listed = map(self._names.__contains__, reversed(marks))
        return compress(zip(range(len(marks), 0, -1), reversed(marks), strict=True), is_listed)


def _marks(conversation: Fingerprint) -> set[int]:
    """The hashes under which a conversation is listed."""
    return {*conversation.digests[-TAIL:], *conversation.chain[-1:]}


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
    if not likeness.continues or (prompt.begins and _is_another_agents(conversation, prompt)):
        return False
    if likeness.num_leading == len(conversation.digests):
        return len(prompt) > len(conversation.digests) or not prompt.begins
    least = min(conversation.num_chars, prompt.num_chars) // MIN_SHARE
    if prompt.begins or likeness.num_shared < max(MIN_SHARED_CHARS, least):
        return False
    spoken = prompt.spoken_weights
    least = min(conversation.num_spoken_chars, sum(spoken.values())) // MIN_SHARE
    if sum(map(spoken.__getitem__, spoken.keys() & set(conversation.digests))) < least:
        return False
    if not conversation.answer or likeness.is_answered:
        return True
    if tuple(conversation.digests[-2:]) not in set[tuple[int, ...]](pairwise(prompt.digests)):
        return False
    return conversation.ours in prompt.weights if conversation.ours else _shares_an_exchange(conversation, prompt)


def _shares_an_exchange(conversation: Fingerprint, prompt: PromptUnits) -> bool:
    """Whether the model says something behind the same unit in both, behind what many conversations may open with."""
    start = max(1, conversation.num_opening, len(conversation.digests) - _MAX_EXCHANGED)
    exchanges = zip(conversation.digests[start - 1 :], conversation.digests[start:], strict=False)
    return not prompt.exchanges.isdisjoint(exchanges)


def _is_another_agents(conversation: Fingerprint, prompt: PromptUnits) -> bool:
    """Whether system text and tools are both others."""
    return conversation.tools != prompt.tools and not conversation.system.is_like(prompt.system)
