"""The token budget of a session: how large its conversation may be, where an eviction stops, and by which policy.

    max_tokens ----------------------------   above this, evict down to the low watermark in one batch,
    low_watermark  --------------------       then grow for many turns while the prefix stays cached

Data only. It does not know what a policy is. `eviction/budget_json.py` reads it from JSON, and the policies evict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULT_POLICY = "chain"
DEFAULT_MAX_TOKENS = 80_000
OptionValue = frozenset[str] | int | bool | str


@dataclass(frozen=True, slots=True)
class Budget:
    """`low_watermark` is in tokens, None for `auto`. `options` are those of the policy that are not its defaults."""

    max_tokens: int
    low_watermark: int | None = None
    policy: str = DEFAULT_POLICY
    options: Mapping[str, OptionValue] = field(default_factory=dict)
