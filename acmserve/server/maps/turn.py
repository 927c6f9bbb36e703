"""The context map in one request: where it stands in the messages, and what the answer says of it.

    head   [system text, map's slot] [user] [assistant] [user]          an update exchanges the slot, in place
    tail   [system] [map v1, user] [assistant] [map v2, user]           an update is appended; nothing old changes
                     ^ stays where it was first read

Decision, tail: the copy that a turn read stays in front of its question. A new one is written only when the map has
changed since. To take the old copy away would shift everything behind it at every turn. The last answer and the map
would be computed again (or moved), also when the map is frozen. What it costs is room: one copy for each update that
the conversation has seen. Beyond `MAX_COPIES` all but the newest go at once.

The transcript of the session knows nothing of maps: they are put in when a prompt is made. Copies are counted by
messages of the user, which no edit and no eviction takes away. Observations (results in the user's name) do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from acmserve.context.session.render import shown_observations
from acmserve.context.session.state import SessionState
from acmserve.context.storage.map_store import HeldMap
from acmserve.context.transcript.message import Message
from acmserve.server.exchange.map_slot import Slot
from acmserve.server.options.map_options import DEFAULT_UPDATE, UpdateOptions

MAX_COPIES = 8
_HEAD = "Context map: what earlier questions taught about the external context."
_TAIL = "Context map, in place of any earlier one: what earlier questions taught about the external context."
_INSTRUCTION_ROLES = ("system", "developer")


@dataclass(frozen=True, slots=True)
class MapCopy:
    """The map as it stands in front of a message of the user, the `ordinal`-th of the conversation."""

    ordinal: int
    text: str


@dataclass(frozen=True, slots=True)
class MapTurn:
    """`slot` is that of the prompt (head), `copies` what stands where (tail). `num_tokens` is what the map adds.

    `query_finished` says whether the answer ends the query. None: as the answer looks.
    """

    held: HeldMap
    text: str
    update: UpdateOptions = DEFAULT_UPDATE
    slot: Slot | None = None
    copies: tuple[MapCopy, ...] = ()
    num_tokens: int = 0
    fields: Mapping[str, Any] = field(default_factory=dict)
    query_finished: bool | None = None

    def place(self, messages: Sequence[Message], observations: Collection[int] = ()) -> list[Message]:
        """The messages with the map in them. `observations` are positions in them."""
        if self.slot is not None:
            return _in_system(messages, f"{_HEAD}\n{self.slot.slots.placeholder(self.slot.budget)}\n")
        return _in_users(messages, self.copies, observations)


def placed(turn: MapTurn | None, messages: list[Message], state: SessionState) -> list[Message]:
    """The messages, rendered from a state, with the map of a turn in them. The very list where there is none."""
    return messages if turn is None else turn.place(messages, shown_observations(state))


def placing(turn: MapTurn | None, state: SessionState) -> Callable[[Sequence[Message]], list[Message]]:
    """`placed`, for messages that are rendered from a state."""
    return lambda messages: placed(turn, list(messages), state)


def num_tokens_of(turn: MapTurn | None) -> int:
    """Tokens that the map of a turn adds to its prompts."""
    return 0 if turn is None else turn.num_tokens


def is_new_query(messages: Sequence[Message], observations: Collection[int] = ()) -> bool:
    """Whether a request begins a query: its last message is the user's, and not the result of a tool."""
    last = len(messages) - 1
    return not messages or (messages[last].get("role") == "user" and last not in observations)


def follow(copies: Sequence[MapCopy], num_users: int, text: str, *, new_query: bool) -> tuple[MapCopy, ...]:
    """The copies of the next request. `text` is the map as it is now, "" where it says nothing yet.

    A query that goes on (results of tools) keeps what it began with. One that is asked again reads the newest.
    """
    kept = [copy for copy in copies if copy.ordinal < num_users]
    if not text or not num_users or (kept and not new_query):
        return tuple(kept)
    before = [copy for copy in kept if copy.ordinal < num_users - 1]
    if kept and kept[-1].text == text:
        return tuple(kept)
    if len(before) >= MAX_COPIES:
        before = []
    return (*before, MapCopy(num_users - 1, text))


def _in_system(messages: Sequence[Message], text: str) -> list[Message]:
    """Behind the client's own instructions, or in a system message in front."""
    if not messages or messages[0].get("role") not in _INSTRUCTION_ROLES:
        return [{"role": "system", "content": text}, *messages]
    content = messages[0].get("content")
    if isinstance(content, list):
        merged: Any = [*content, {"type": "text", "text": text}]
    else:
        merged = f"{content}\n\n{text}" if content else text
    return [{**messages[0], "content": merged}, *messages[1:]]


def _in_users(messages: Sequence[Message], copies: Sequence[MapCopy], observations: Collection[int]) -> list[Message]:
    texts = {copy.ordinal: f"{_TAIL}\n\n{copy.text}\n\n" for copy in copies}
    placed, ordinal = [], 0
    for position, message in enumerate(messages):
        if message.get("role") == "user" and position not in observations:
            placed.append(_in_front(message, texts[ordinal]) if ordinal in texts else message)
            ordinal += 1
        else:
            placed.append(message)
    return placed


def _in_front(message: Message, text: str) -> Message:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [{"type": "text", "text": text}, *content]}
    return {**message, "content": text + (content or "")}
