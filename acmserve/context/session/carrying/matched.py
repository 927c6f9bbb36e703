"""A client's messages beside the entries that the client holds: which of them the session knows.

    entries   system   user   [internal]   answer   user
    held      0        1                   3        4
    sent      system'  user                answer   user   user       matches: CHANGED 0, SAME 1, SAME 2, SAME 3, None

Decision: a message that is equal to its entry is known without a digest, so that a history that only grows costs a
comparison. Digests are made from the first difference on. A history that grows word for word never comes here, see
`adopt`. A message that is the very object of a sealed entry was sent by nobody: it is that entry, whatever it says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from acmserve.context.alignment.match import Matches, MatchKind, MessageMatch, match_messages
from acmserve.context.alignment.normal_form import digest_sent
from acmserve.context.session.state import Author, SessionState
from acmserve.context.transcript.message import Message


@dataclass(frozen=True, slots=True)
class MatchedHistory:
    """`held` are the entries that the client holds. `matches` has for each message its place in `held`.

    `num_prefix` messages are the first ones held, in order. `digests` has one for each message.
    """

    held: tuple[int, ...]
    digests: tuple[bytes, ...]
    matches: Matches
    num_prefix: int

    @property
    def num_known(self) -> int:
        """How many messages the session knows, if in other words."""
        return sum(match is not None and match.is_known for match in self.matches)

    @property
    def is_prefix(self) -> bool:
        """Whether only the first messages are known."""
        return self.num_known == self.num_prefix


def match_history(state: SessionState, messages: Sequence[Message]) -> MatchedHistory:
    """Find the messages in the session. Raises `InvalidRequest` naming one that is no JSON object or no UTF-8."""
    held = tuple(at for at, entry in enumerate(state.entries) if entry.origin is not Author.INTERNAL)
    own = {id(entry.message): entry.digest for at in held if (entry := state.entries[at]).sealed}
    digests: list[bytes] = []
    num_prefix = 0
    for index, (at, message) in enumerate(zip(held, messages, strict=False)):
        entry = state.entries[at]
        is_equal = not entry.sealed and _is_equal(entry.message, message)
        digest = entry.digest if is_equal else _digest(state, own, index, message)
        digests.append(digest)
        if digest != entry.digest:
            break
        num_prefix += 1
    digests += [_digest(state, own, index, messages[index]) for index in range(len(digests), len(messages))]
    matches: Matches = [MessageMatch(at, MatchKind.SAME) for at in range(num_prefix)]
    if num_prefix == len(held):
        matches += [None] * (len(messages) - num_prefix)
    elif num_prefix < len(messages):
        old = [state.entries[at] for at in held[num_prefix:]]
        behind = match_messages(
            [entry.digest for entry in old],
            [entry.message for entry in old],
            digests[num_prefix:],
            messages[num_prefix:],
        )
        matches += [None if m is None else MessageMatch(m.old + num_prefix, m.kind) for m in behind]
    return MatchedHistory(held, tuple(digests), matches, num_prefix)


def _digest(state: SessionState, own: Mapping[int, bytes], index: int, message: Message) -> bytes:
    """The digest of a message. `own` has those of sealed entries, by the identity of their messages."""
    return own.get(id(message)) or digest_sent(index, message, state.digest_key)


def _is_equal(entry: Message, message: object) -> bool:
    try:
        return entry == message
    except RecursionError:
        return False
