"""What a session wants computed before it is asked for, as read from JSON that a person wrote.

    {"mode": "predict", "max_pool_share": 0.2}      or just "predict"

    off       nothing
    heal      a context that was served with moved KV is computed anew, so that its next turn is exact
    predict   that, and edits that are likely to come: the next eviction, clearings, folds
    exact     these edits, behind turns that ask for no moved KV. Nothing is healed, and nothing is judged

It computes nothing and predicts nothing: see `precompute/planner.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from acmserve.errors import InvalidRequest
from acmserve.validation import did_you_mean, echo_json

MODES = ("off", "heal", "predict", "exact")
DEFAULT_POOL_SHARE = 0.2
_KNOWN = ("mode", "max_pool_share")


@dataclass(frozen=True, slots=True)
class PrecomputeOptions:
    """`max_pool_share`: the part of the KV cache that precomputed contexts may take at one time."""

    mode: str = "off"
    max_pool_share: float = DEFAULT_POOL_SHARE

    @property
    def predicts(self) -> bool:
        """Whether edits that are likely to come are precomputed."""
        return self.mode in ("predict", "exact")

    @property
    def heals(self) -> bool:
        """Whether a context that was served with moved KV is computed anew."""
        return self.mode in ("heal", "predict")

    def as_dict(self) -> dict[str, Any]:
        """The options as JSON. `parse_precompute` reads them back equal."""
        return {"mode": self.mode, "max_pool_share": self.max_pool_share}


def parse_precompute(value: object, field: str = "precompute") -> PrecomputeOptions:
    """The options that `value` writes: an object, or just its mode.

    Raises `InvalidRequest` whose field is the path of the bad value, `precompute.mode`.
    """
    given = value if isinstance(value, Mapping) else {"mode": value}
    for name in given:
        if name not in _KNOWN:
            guess = did_you_mean(str(name), _KNOWN)
            known = f"Known: {', '.join(_KNOWN)}."
            raise InvalidRequest(f"{field}.{echo_json(name)[1:-1]}", f"is not known.{guess}", known)
    mode = given.get("mode", "off")
    if not isinstance(mode, str) or mode not in MODES:
        raise InvalidRequest(f"{field}.mode", f"{echo_json(mode)} is not known.", f"Choose {', '.join(MODES)}.")
    share = given.get("max_pool_share", DEFAULT_POOL_SHARE)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise InvalidRequest(
            f"{field}.max_pool_share", f"must be a number from 0 to 1, not {echo_json(share)}.", "0.2 is the default."
        )
    return PrecomputeOptions(mode, float(share))
