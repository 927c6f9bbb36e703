"""Time to the first token by kind of turn, for operators, and the line in the log where a move was refused.

    first          nothing was served to the session before
    append         the prompt goes on from the last one
    edited         it does not: something was folded, evicted, restored, or said in other words
    precomputed    a background request had computed a part of it

Decision: whether a prompt goes on is judged by the last tokens of the one before, at their place. To compare all of
them would read a long prompt once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import Histogram

from acmserve.server.exchange.events import Event, log
from acmserve.server.exchange.served_prompts import ServedContext

TURNS = ("first", "append", "edited", "precomputed")
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
FIRST_TOKEN = Histogram(
    "acmserve:first_token_seconds",
    "Seconds from a session request's arrival to its first token, by kind of turn.",
    labelnames=("turn",),
    buckets=BUCKETS,
)
_COMPARED = 64

for _turn in TURNS:
    FIRST_TOKEN.labels(_turn)


def kind_of_turn(before: ServedContext, prompt: Sequence[int], receipt: Mapping[str, Any]) -> str:
    """One of `TURNS`. `before` is what was served to the session until this turn."""
    if receipt.get("precomputed_tokens"):
        return "precomputed"
    if before.last is None:
        return "first"
    end = before.num_served
    start = max(0, end - _COMPARED)
    is_append = list(prompt[start:end]) == before.last.prompt_token_ids[start:end].tolist()
    return "append" if is_append else "edited"


def note_turn(before: ServedContext, prompt: Sequence[int], receipt: Mapping[str, Any], seconds: float | None) -> None:
    """Count one answered request of a session. Prompts that are more than tokens are not compared."""
    if prompt and seconds is not None:
        FIRST_TOKEN.labels(kind_of_turn(before, prompt, receipt)).observe(seconds)


def note_fallback(session_id: str, receipt: Mapping[str, Any]) -> None:
    """Tell a move that was asked for and refused."""
    reason = receipt.get("fallback_reason")
    if reason is not None:
        log(Event.FALLBACK, session_id, reason=f"{reason!a}", computed_tokens=receipt["computed_tokens"])
