"""What a policy is: it decides what leaves a conversation so that a target is met. The registry lists all of them.

A policy is a frozen dataclass whose fields are its options. It is built anew from a budget, it keeps nothing between
two plans, and the same view gives the same plan. It carries nothing out.

Its options are data. The budget parser, the HTTP schema, the help of the command line and the table in the
documentation are all made from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Protocol

from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.plan import EvictionPlan
from acmserve.context.session.budget import OptionValue
from acmserve.errors import InvalidRequest
from acmserve.validation import echo_json


class OptionKind(Enum):
    """What a value may be."""

    TOOLS = "list of tool names"
    COUNT = "count"
    FLAG = "true or false"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Option:
    """`remedy` says what to give in the place of a wrong value. Each kind has a default."""

    name: str
    kind: OptionKind
    default: OptionValue
    description: str
    remedy: str = ""

    def read(self, value: object, field: str) -> OptionValue:
        """The value that a person wrote. Raises `InvalidRequest` for `field`."""
        if self.kind is OptionKind.TOOLS:
            if isinstance(value, list | tuple) and all(isinstance(name, str) and name for name in value):
                return frozenset(value)
            raise InvalidRequest(
                field,
                f"{echo_json(value)} is no list of tool names.",
                self.remedy or 'Give for instance ["grep", "glob"].',
            )
        if self.kind is OptionKind.COUNT:
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
            raise InvalidRequest(field, f"{echo_json(value)} is no count.", self.remedy or "Give a number, 0 or more.")
        if self.kind is OptionKind.FLAG and isinstance(value, bool):
            return value
        if self.kind is OptionKind.TEXT and isinstance(value, str):
            return value
        default = "Give true or false." if self.kind is OptionKind.FLAG else "Give a text."
        raise InvalidRequest(field, f"{echo_json(value)} is not allowed.", self.remedy or default)

    def as_json(self, value: OptionValue) -> object:
        """A value as JSON. `read` reads it back equal."""
        return sorted(value) if isinstance(value, frozenset) else value


class Policy(Protocol):
    """`summary` is one line for the documentation, and `options` are the keywords that its class takes.

    With `needs_episodes` it reads the episodes that the `delimiter` tool marks. With `needs_model` a summary is written
    for it: then `plan` raises `InvalidRequest`, and whoever carries it out asks the model (`compact`).
    """

    summary: ClassVar[str]
    options: ClassVar[tuple[Option, ...]]
    needs_episodes: ClassVar[bool]
    needs_model: ClassVar[bool]

    def plan(self, view: ConversationView, target: int) -> EvictionPlan:
        """What to take out until at most `target` tokens are shown, on top of what is left out already. Pure."""
