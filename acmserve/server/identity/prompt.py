"""What a request says, as units that can be recognised one by one: for every route, in one shape.

    system      leading system and developer messages, `system` of /v1/messages, `instructions` of /v1/responses
    tools       the set of their names
    units       each text, tool call and tool result of the messages, in order      u0 u1 u2 u3 ...
    chain       a hash over all units up to there                                   c0 c1 c2 c3 ...

What a unit is, and what of it counts, is in `units.py`. The cost is one pass over the text at C speed, and a few
instructions for each unit. It knows JSON bodies, neither sessions nor tenants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, compress, pairwise
from typing import Any

from acmserve.server.identity.system_text import SystemText
from acmserve.server.identity.units import UnitReader

_INSTRUCTING = ("system", "developer")


@dataclass(frozen=True)
class PromptUnits:
    """`texts`, `answers`, `digests` and `lengths` go together, a unit each: see `UnitReader`.

    `tools` is a hash of the names, 0 where there are none. `num_spelled` calls were not known by their spelling.
    """

    system: SystemText
    tools: int
    texts: tuple[str, ...] = ()
    answers: tuple[bool, ...] = ()
    digests: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    num_spelled: int = 0
    chain: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        chain = accumulate(self.digests, lambda last, digest: hash((last, digest)), initial=0)
        object.__setattr__(self, "chain", tuple(chain)[1:])

    def __len__(self) -> int:
        """Units."""
        return len(self.texts)

    @cached_property
    def weights(self) -> dict[int, int]:
        """Characters of each unit, by hash."""
        return dict(zip(self.digests, self.lengths, strict=True))

    @cached_property
    def spoken_weights(self) -> dict[int, int]:
        """Characters of each unit that the model wrote, by hash."""
        return dict(compress(zip(self.digests, self.lengths, strict=True), self.answers))

    @cached_property
    def pairs(self) -> frozenset[tuple[int, int]]:
        """Each unit, by hash, with the one that stands behind it."""
        return frozenset(pairwise(self.digests))

    @cached_property
    def compared(self) -> dict[int, tuple[Any, Any]]:
        """What it was compared with, and what came of that, by the id of the former: see `fingerprint.py`."""
        return {}

    @cached_property
    def num_chars(self) -> int:
        """Characters of all units."""
        return sum(self.lengths)

    @cached_property
    def num_spoken_chars(self) -> int:
        """Characters of the units that the model wrote, each counted once."""
        return sum(self.spoken_weights.values())

    @property
    def begins(self) -> bool:
        """Whether it is the first turn of a conversation: the model has said nothing in it."""
        return not any(self.answers)


def read_prompt(body: object) -> PromptUnits | None:
    """The prompt of a request of /v1/chat/completions, /v1/messages or /v1/responses. None where there is none.

    Reads whatever is there. What is wrong with a message is for others to say.
    """
    if not isinstance(body, Mapping):
        return None
    given = body.get("messages") if body.get("messages") is not None else body.get("input")
    messages: Sequence[Any] = [{"role": "user", "content": given}] if isinstance(given, str) else given or ()
    if not isinstance(messages, list) or not messages:
        return None
    num_leading = next((n for n, message in enumerate(messages) if not _is_instruction(message)), len(messages))
    head, units = UnitReader(), UnitReader()
    for name in ("instructions", "system"):
        head.read_content(body.get(name), False)
    for message in messages[:num_leading]:
        head.read(message)
    for message in messages[num_leading:]:
        units.read(message)
    system = SystemText.of("\n".join(text for text, *_ in head.units))
    tools = digest_tools(body.get("tools"))
    if not units.units:
        return PromptUnits(system, tools)
    texts, answers, digests, lengths = zip(*units.units, strict=True)
    return PromptUnits(system, tools, texts, answers, digests, lengths, units.num_spelled)


def read_units(message: object) -> tuple[int, ...]:
    """The hashes of the units of one message, as they stand in a prompt that has it."""
    reader = UnitReader()
    reader.read(message)
    return tuple(digest for _, _, digest, _ in reader.units)


def _is_instruction(message: object) -> bool:
    return isinstance(message, Mapping) and message.get("role") in _INSTRUCTING


def digest_tools(tools: object) -> int:
    """A hash of the tools' names. A tool without a name counts by its type."""
    if not isinstance(tools, list) or not tools:
        return 0
    named = [tool.get("function") or tool for tool in tools if isinstance(tool, Mapping)]
    return (
        hash(frozenset(str(tool.get("name") or tool.get("type")) for tool in named if isinstance(tool, Mapping))) or 1
    )
