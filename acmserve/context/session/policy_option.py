"""An option of a policy, as data: its name, its kind, its default, and how a person's value is read.

The budget parser, the HTTP schema, the help of the command line and the table in the documentation are all made from
options. It does not know which policy an option belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from acmserve.context.schema.arguments import echo
from acmserve.context.session.budget import OptionValue
from acmserve.errors import InvalidRequest


class OptionKind(Enum):
    """What a value may be."""

    TOOLS = "list of tool names"
    COUNT = "count"
    FLAG = "true or false"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Option:
    """`remedy` says what to give in the place of a wrong value; each kind has a default."""

    name: str
    kind: OptionKind
    default: OptionValue
    description: str
    remedy: str = ""

    def read(self, value: object, field: str) -> OptionValue:
        """The value that a person wrote; raises `InvalidRequest` for `field`."""
        if self.kind is OptionKind.TOOLS:
            if isinstance(value, list | tuple) and all(isinstance(name, str) and name for name in value):
                return frozenset(value)
            raise InvalidRequest(
                field, f"{echo(value)} is no list of tool names.", self.remedy or 'Give for instance ["grep", "glob"].'
            )
        if self.kind is OptionKind.COUNT:
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
            raise InvalidRequest(field, f"{echo(value)} is no count.", self.remedy or "Give a number, 0 or more.")
        if self.kind is OptionKind.FLAG and isinstance(value, bool):
            return value
        if self.kind is OptionKind.TEXT and isinstance(value, str):
            return value
        default = "Give true or false." if self.kind is OptionKind.FLAG else "Give a text."
        raise InvalidRequest(field, f"{echo(value)} is not allowed.", self.remedy or default)

    def as_json(self, value: OptionValue) -> object:
        """A value as JSON; `read` reads it back equal."""
        return sorted(value) if isinstance(value, frozenset) else value
