"""The context map in one request: where it stands in the messages, and what the answer says of it.

    head   [system text, map's slot] [user] [assistant] [user]          an update exchanges the slot, in place
    tail   [system] [map v1, user] [assistant] [map v2, user]           an update is appended. Nothing old changes
                     ^ stays where it was first read

Decision, tail: the copy that a turn read stays in front of its question. A new one is written only when the map has
changed since. To take the old copy away would shift everything behind it at every turn. The last answer and the map
would be computed again (or moved), also when the map is frozen. What it costs is room: one copy for each update that
the conversation has seen. Beyond `MAX_COPIES` all but the newest go at once.

The transcript of the session knows nothing of maps: they are put in when a prompt is made. Copies are counted by
messages of the user, as the transcript has them. Observations (results in the user's name) do not count.

    evicted    [system] [marker] [assistant] [map v1, user]             its question is gone: the last one has the map
    merged     [system] [map v1, user, map v2, user]                    each copy stays in front of its question

An older copy goes with a question that an eviction takes. The newest goes to the last question, and stays there in
later requests. So whatever is left of a conversation shows the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from acmserve.context.accounting.rendered_spans import PromptRenderer
from acmserve.context.session.render import render, shown_questions
from acmserve.context.session.state import SessionState
from acmserve.context.storage.map_store import HeldMap
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.template_rules import TemplateRules
from acmserve.server.budget.budgets import PromptOverhead
from acmserve.server.exchange.map_slot import Slot
from acmserve.server.options.map_options import DEFAULT_UPDATE, QueryFinished, UpdateOptions

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

    `query_finished` says whether the answer ends the query, or that FINAL(...) in it does. None: as the answer looks.
    """

    held: HeldMap
    text: str
    update: UpdateOptions = DEFAULT_UPDATE
    slot: Slot | None = None
    copies: tuple[MapCopy, ...] = ()
    num_tokens: int = 0
    fields: Mapping[str, Any] = field(default_factory=dict)
    query_finished: QueryFinished | None = None

    def in_front(self, state: SessionState) -> dict[int, str]:
        """The copies (tail) by the entries in front of which they stand, of those that the model sees."""
        shown = shown_questions(state) if self.copies else {}
        texts = {shown[copy.ordinal]: copy.text for copy in self.copies if copy.ordinal in shown}
        if shown and self.copies[-1].ordinal not in shown:
            texts[max(shown.values())] = self.copies[-1].text
        return {entry: f"{_TAIL}\n\n{text}\n\n" for entry, text in texts.items()}

    def in_system(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with the map's slot (head) in them."""
        if self.slot is None:
            return list(messages)
        return _in_system(messages, f"{_HEAD}\n{self.slot.slots.placeholder(self.slot.budget)}\n")


def placed(turn: MapTurn | None, messages: list[Message], state: SessionState, rules: TemplateRules) -> list[Message]:
    """The messages, rendered from a state, with the map of a turn in them. The very list where there is none."""
    return messages if turn is None else turn.in_system(render(state, rules, turn.in_front))


def placing(turn: MapTurn | None) -> Callable[[Sequence[Message]], list[Message]]:
    """Puts the map of a turn into messages that have its copies already."""
    return list if turn is None else turn.in_system


def beside_of(
    turn: MapTurn | None, tools: Sequence[Mapping[str, Any]], renderer: PromptRenderer | None, preset: str = ""
) -> PromptOverhead:
    """What stands beside the messages in the prompts of a request with this map."""
    if turn is None:
        return PromptOverhead(tools, preset, renderer=renderer)
    return PromptOverhead(tools, preset, turn.num_tokens, renderer, turn.in_front)


def is_new_query(messages: Sequence[Message], observations: Collection[int] = ()) -> bool:
    """Whether a request begins a query: its last message is the user's, and not the result of a tool.

    What the system says behind it is passed over.
    """
    said = [n for n, message in enumerate(messages) if message.get("role") not in _INSTRUCTION_ROLES]
    return not said or (messages[said[-1]].get("role") == "user" and said[-1] not in observations)


def behind_evictions(copies: Sequence[MapCopy], state: SessionState, last_asked: int) -> tuple[MapCopy, ...]:
    """The copies of the last prompt, whose last question was `last_asked`, as an eviction has left them in a state."""
    if not copies or not state.omissions:
        return tuple(copies)
    shown = shown_questions(state)
    kept = [copy for copy in copies if copy.ordinal in shown]
    if copies[-1].ordinal not in shown:
        kept.append(replace(copies[-1], ordinal=last_asked))
    return tuple(kept)


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
