"""A budget as JSON: read from what a person wrote, and written down whole.

    {"max_tokens": "50%", "low_watermark": "auto", "policy": "cwl"}

Every wrong value is refused by its name, with what it may be. Tokens are written as 80000, "80000", "80k" or "50%" (of
the model's context window). A watermark is also written as a fraction of `max_tokens` (0.6, "60%"), or as "max_tokens".
Then an eviction stops as soon as the budget is met, as Algorithm 1 of CWL does. Policies and their options come from
the registry. It does not evict, and `low_watermark.py` finds "auto".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from acmserve.context.eviction import registry
from acmserve.context.session.budget import DEFAULT_MAX_TOKENS, DEFAULT_POLICY, Budget, OptionValue
from acmserve.errors import InvalidRequest
from acmserve.validation import did_you_mean, echo_json

AUTO, AT_MAX = "auto", "max_tokens"
_SETTINGS = ("max_tokens", "low_watermark", "policy")
_TOKENS = re.compile(r"(?:(\d{1,12})|(\d{1,9}(?:\.\d{1,3})?)\s*k)", re.IGNORECASE)
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*%")
_TOKENS_REMEDY = 'Give tokens, such as 80000 or "80k", or a share of the context window, such as "50%".'
_WATERMARK_REMEDY = (
    'Give "auto", "max_tokens", tokens such as 60000 or "60k", or a share of max_tokens such as 0.6 or "60%".'
)


def parse_budget(value: object, window: int, field: str = "budget") -> Budget:
    """The budget that `value` writes: an object, or just its `max_tokens`. `window` is the model's context in tokens.

    Raises `InvalidRequest` whose field is the path of the bad value, `budget.low_watermark`.
    """
    given = value if isinstance(value, Mapping) else {"max_tokens": value}
    owners = registry.option_owners()
    for name in given:
        if name not in _SETTINGS and name not in owners:
            known = (*_SETTINGS, *owners)
            guess = did_you_mean(str(name), known)
            raise InvalidRequest(f"{field}.{_name(name)}", f"is not known.{guess}", f"Known: {', '.join(known)}.")
    policy = given.get("policy", DEFAULT_POLICY)
    found = registry.find(policy, f"{field}.policy")
    options = {option.name: option for option in found.options}
    for name in given:
        if name in owners and name not in options:
            raise InvalidRequest(
                f"{field}.{name}", f"is no option of policy {policy}.", f"It goes with {' or '.join(owners[name])}."
            )
    asked = given.get("max_tokens", min(DEFAULT_MAX_TOKENS, window))
    max_tokens = _read_max(asked, window, f"{field}.max_tokens")
    watermark = _read_watermark(given.get("low_watermark", AUTO), max_tokens, f"{field}.low_watermark")
    read: dict[str, OptionValue] = {}
    for name, option in options.items():
        if name in given and (chosen := option.read(given[name], f"{field}.{name}")) != option.default:
            read[name] = chosen
    budget = Budget(max_tokens, watermark, str(policy), read)
    try:
        registry.policy_of(budget)
    except InvalidRequest as error:
        raise InvalidRequest(f"{field}.{error.field}", error.message, error.remedy) from None
    return budget


def budget_value(budget: Budget) -> dict[str, Any]:
    """The budget as JSON, in tokens and with the defaults of its policy. `parse_budget` reads it back equal."""
    low_watermark = AUTO if budget.low_watermark is None else budget.low_watermark
    settings = {"max_tokens": budget.max_tokens, "low_watermark": low_watermark, "policy": budget.policy}
    options = {
        option.name: option.as_json(budget.options.get(option.name, option.default))
        for option in registry.find(budget.policy).options
    }
    return settings | options


def _name(name: object) -> str:
    return echo_json(name).strip("'")


def _read_max(value: object, window: int, field: str) -> int:
    share = _percent(value)
    tokens = _tokens(value) if share is None else int(window * share)
    if tokens is None or tokens < 1:
        raise InvalidRequest(field, f"{echo_json(value)} is no number of tokens.", _TOKENS_REMEDY)
    if tokens > window:
        raise InvalidRequest(
            field, f"{tokens:,} is more than the model's context window of {window:,} tokens.", _TOKENS_REMEDY
        )
    return tokens


def _read_watermark(value: object, max_tokens: int, field: str) -> int | None:
    if value == AUTO:
        return None
    if value == AT_MAX:
        return max_tokens
    share = _percent(value)
    if isinstance(value, float) and 0 < value <= 1:
        share = value
    tokens = _tokens(value) if share is None else int(max_tokens * share)
    if tokens is None or tokens < 1:
        raise InvalidRequest(field, f"{echo_json(value)} is no watermark.", _WATERMARK_REMEDY)
    if tokens > max_tokens:
        raise InvalidRequest(field, f"{tokens:,} is above max_tokens, {max_tokens:,}.", _WATERMARK_REMEDY)
    return tokens


def _tokens(value: object) -> int | None:
    """A number of tokens, as an integer or as a string that writes one. None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value.is_integer() else None
    match = _TOKENS.fullmatch(value.strip().replace("_", "").replace(",", "")) if isinstance(value, str) else None
    if match is None:
        return None
    return int(match[1]) if match[1] is not None else round(float(match[2]) * 1000)


def _percent(value: object) -> float | None:
    """The share that "50%" writes, above 0 and up to 1. None for anything else."""
    match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    share = float(match[1]) / 100 if match is not None else 0.0
    return share if 0 < share <= 1 else None
