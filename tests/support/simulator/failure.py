"""The one exception of the simulator. `kind` is what a negative control asserts on. The message prints the numbers."""

from __future__ import annotations

from typing import Literal

Kind = Literal[
    "poison",  # a slot that nobody wrote since its block was handed out
    "token",  # KV of another token
    "position",  # KV turned to another position
    "leak",  # KV that this request must not read
    "count",  # the worker's computed count is stale
    "input",  # the worker would feed a token it does not know
    "table",  # a block table does not cover what is read or written
    "overlap",  # two writes, or a copy's source and a write, meet in one slot
    "blocks",  # reference counts or free blocks do not add up
    "output",  # a client got other tokens than the model sampled
    "forgotten",  # KV that a session was told to forget can still be found
    "receipt",  # a receipt does not add up
    "precompute",  # a background request is in somebody's way
    "integrity",  # the connector's own check_integrity raised
    "stuck",  # requests are left and nothing moves
]


class SimulationFailure(AssertionError):
    """The scheduler told the worker something wrong."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind: Kind = kind


def ensure(condition: bool, kind: Kind, message: str) -> None:
    """Raise `SimulationFailure` unless `condition` holds."""
    if not condition:
        raise SimulationFailure(kind, message)
