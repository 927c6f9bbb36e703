"""How many bytes many holders hold together, as a running sum.

Each holder adds what it grew by, so nobody asks all of them. Whoever owns the sum compares it with the holders'.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HeldBytes:
    """The sum."""

    num_bytes: int = 0
