"""Finds the conversation whose first part a request is about: a client that has all but its newest steps summarized.

    conversation   [system A][tools]  u0 a1 u2 a3 u4 a5 u6 a7 u8     listed under the chain hashes c1 c3 c7
    request        [system B]         u0 a1 u2 a3 u4 x               u4 is the last of both, x its own words

Such a request leaves the end of the conversation out, so that nothing is found by it (`content.py`). Its beginning
finds it: a conversation is listed under the chain hash of its first 2, 4, 8, ... units. The greatest of these numbers
that a request shares is more than half of what it shares.

Whose beginning it is counts only where nobody can be wrong:

- The request has no tools and another system text, so it is a task about the conversation and no turn of it. A fork
  from the middle goes on with tools, or under the same system text, and is a conversation of its own.
- All of its units but its own last words are the conversation's, in order, and its model has spoken twice in them. A
  client may begin every conversation with the same words of the model, so an answer of this server must be among them.
  The end that it leaves out may be an answer alone.
- One conversation has more of it than every other. Two runs that are the same up to there are told apart by nothing,
  and the request is a new session.

Decision: it is a fork of the conversation. It sees the history as the conversation's model does, edits included, and
changes nothing there. Holds hashes, no text. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from acmserve.server.identity.fingerprint import MIN_SHARE, MIN_SHARED_CHARS, Fingerprint, num_leading
from acmserve.server.identity.names_by_hash import NamesByHash
from acmserve.server.identity.prompt import PromptUnits

MAX_ALIKE = 16
"""Conversations that begin alike. Among more, none is looked for."""
MIN_SPOKEN = 2
"""Words and calls of the model that a first part must have."""


class Beginnings:
    """The conversations with tools of one tenant, by what they begin with."""

    def __init__(self) -> None:
        self._names = NamesByHash()

    def __len__(self) -> int:
        """Hashes that are known."""
        return len(self._names)

    def add(self, name: str, conversation: Fingerprint) -> None:
        """Let a conversation be found."""
        self._names.enter(name, _marks(conversation))

    def remove(self, name: str, conversation: Fingerprint) -> None:
        """Let it be found no more."""
        self._names.leave(name, _marks(conversation))

    def check_integrity(self, conversations: Mapping[str, Fingerprint]) -> None:
        """Raise `IntegrityError` with the numbers unless these are listed, and nothing else."""
        self._names.check_integrity("beginnings", conversations, _marks)

    def find(self, prompt: PromptUnits, conversations: Mapping[str, Fingerprint]) -> tuple[int, str | None] | None:
        """The one conversation whose first part a request is about: the units that it has of it, and its name.

        No name where nobody can tell which one it is. None where there is none.
        """
        if not _may_be_about_another(prompt):
            return None
        num_spoken = len(prompt) - prompt.answers[::-1].index(True)
        for number in reversed(_numbers(len(prompt))):
            names = self._names.get(prompt.chain[number - 1], {})
            if len(names) > MAX_ALIKE:
                return number, None
            ranked = sorted(
                (num_leading(conversations[name], prompt), name)
                for name in names
                if has_first_part(conversations[name], prompt)
            )
            if ranked:
                num_units, name = ranked[-1]
                is_alone = len(ranked) == 1 or ranked[-2][0] < num_units
                return num_units, name if is_alone and _has_ours(conversations[name], prompt) else None
            if number <= num_spoken:
                return None
        return None


def has_first_part(conversation: Fingerprint, prompt: PromptUnits) -> bool:
    """Whether a request is about the first part of this conversation. See the module."""
    if not conversation.tools or not _may_be_about_another(prompt):
        return False
    num_shared = num_leading(conversation, prompt)
    if num_shared == len(conversation.digests) and conversation.answer <= prompt.weights.keys():
        return False
    if any(prompt.answers[num_shared:]):
        return False
    if sum(prompt.answers[:num_shared]) < MIN_SPOKEN:
        return False
    num_chars = sum(prompt.lengths[:num_shared])
    if num_chars < MIN_SHARED_CHARS or num_chars * MIN_SHARE < prompt.num_chars:
        return False
    return not conversation.system.is_like(prompt.system)


def _has_ours(conversation: Fingerprint, prompt: PromptUnits) -> bool:
    """Whether a request has an answer that this server gave in a conversation, where it gave any."""
    return not conversation.answer or conversation.ours in prompt.weights


def _may_be_about_another(prompt: PromptUnits) -> bool:
    return not prompt.tools and not prompt.system.is_empty and not prompt.begins


def _marks(conversation: Fingerprint) -> Iterator[int]:
    """The hashes of its proper beginnings under which a conversation is listed."""
    chain: Sequence[int] = conversation.chain if conversation.tools else ()
    return (chain[number - 1] for number in _numbers(len(chain) - 1))


def _numbers(most: int) -> list[int]:
    """2, 4, 8, ... up to the greatest that is not above `most`."""
    return [2**power for power in range(1, max(most, 0).bit_length())]
