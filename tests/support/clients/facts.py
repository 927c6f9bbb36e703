"""What a recorded exchange says about sessions and tokens, on each of the three routes. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any
from urllib.parse import unquote

from tests.support.clients.recorder import Exchange

ROUTES = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
_INPUT_NAMES = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


def is_answering(exchange: Exchange) -> bool:
    """Whether a model was asked."""
    return exchange.method == "POST" and exchange.path.partition("?")[0] in ROUTES


def asked(exchanges: Iterable[Exchange]) -> list[Exchange]:
    """The requests for an answer, in order."""
    return [exchange for exchange in exchanges if is_answering(exchange)]


def acm_of(exchange: Exchange) -> dict[str, Any] | None:
    """The `acm` of an answer, wherever its route puts it."""
    for event in reversed(exchange.events()):
        for holder in (event, event.get("response"), event.get("message")):
            if isinstance(holder, dict) and isinstance(holder.get("acm"), dict):
                found: dict[str, Any] = holder["acm"]
                return found
    return None


def session_of(exchange: Exchange) -> str | None:
    """The session that the server says it has served: in `acm`, else in the header."""
    acm = acm_of(exchange)
    if acm is not None and acm.get("session_id"):
        return str(acm["session_id"])
    named = re.search(r"session=([^;]+)", exchange.answer_headers.get("x-acm-receipt", ""))
    return None if named is None else unquote(named[1])


def computed_tokens(exchange: Exchange) -> int | None:
    """What its receipt says was computed."""
    receipt = (acm_of(exchange) or {}).get("receipt")
    return None if receipt is None else int(receipt["computed_tokens"])


def prompt_tokens(exchange: Exchange) -> int | None:
    """The length of the served prompt: by the receipt, else by the usage of the route."""
    receipt = (acm_of(exchange) or {}).get("receipt")
    if receipt is not None:
        return int(receipt["prompt_tokens"])
    for usage in _usages(exchange):
        if "prompt_tokens" in usage:
            return int(usage["prompt_tokens"])
        if "input_tokens" in usage:
            names = _INPUT_NAMES if "messages" in exchange.path else _INPUT_NAMES[:1]
            return sum(int(usage.get(name) or 0) for name in names)
    return None


def unmet_of(exchange: Exchange) -> Any:
    """How far a budget was missed, or None where it was held. No budget at all is `no budget`."""
    budget = (acm_of(exchange) or {}).get("budget")
    return "no budget" if budget is None else budget.get("unmet") or None


def evicted_of(exchange: Exchange) -> int:
    """How many tokens an answer says to have evicted for its budget."""
    budget = (acm_of(exchange) or {}).get("budget") or {}
    return int(budget.get("evicted_tokens") or 0)


def dropped(exchange: Exchange) -> set[str]:
    """The fragments that the history of the request did not keep, by the answer."""
    return {str(edit["id"]) for edit in (acm_of(exchange) or {}).get("dropped") or ()}


def said(exchange: Exchange) -> str:
    """The text of an answer, put together from its events."""
    found = []
    for event in exchange.events():
        parts = [choice.get("delta") or choice.get("message") or {} for choice in event.get("choices") or ()]
        found.extend(part.get("content") or "" for part in parts)
        delta = event.get("delta")
        if isinstance(delta, str) and event.get("type") == "response.output_text.delta":
            found.append(delta)
        if isinstance(delta, dict):
            found.append(str(delta.get("text") or ""))
        if "choices" not in event and "delta" not in event:
            found.extend(texts_of(event.get("content") or event.get("output") or []))
    return "".join(found)


def offers_tools(exchange: Exchange) -> bool:
    """Whether the request offers tools: a client's main requests do."""
    return bool(exchange.body.get("tools"))


def mentions(exchange: Exchange, words: str) -> bool:
    """Whether these words stand anywhere in the request."""
    return words in json.dumps(exchange.body)


def new_text(earlier: Sequence[Exchange], now: Exchange) -> str:
    """The lines of a request that no earlier one had."""
    known = {line for exchange in earlier for text in texts_of(exchange.body) for line in text.splitlines()}
    return "\n".join(line for text in texts_of(now.body) for line in text.splitlines() if line not in known)


def added_text(conversation: Iterable[Exchange], summaries: Iterable[Exchange], now: Exchange) -> str:
    """The lines of a request for a summary that its conversation did not have as often. What is said again is new.

    So is an instruction that an earlier summary had, but for what both begin with.
    """
    left: Counter[str] = Counter()
    for exchange in conversation:
        left |= Counter(_lines_of(exchange))
    lines, added = _lines_of(now), []
    num_common = max((_num_common(_lines_of(one), lines) for one in summaries), default=0)
    for number, line in enumerate(lines):
        left[line] -= 1
        if left[line] < 0 and number >= num_common:
            added.append(line)
    return "\n".join(added)


def _num_common(some: Sequence[str], others: Sequence[str]) -> int:
    pairs = zip(some, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _lines_of(exchange: Exchange) -> list[str]:
    return [line for text in texts_of(exchange.body) for line in text.splitlines()]


def texts_of(value: Any) -> Iterator[str]:
    """Every text in a body, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from texts_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_of(inner)


def _usages(exchange: Exchange) -> Iterator[dict[str, Any]]:
    for event in reversed(exchange.events()):
        for holder in (event, event.get("response"), event.get("message")):
            if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
                yield holder["usage"]
