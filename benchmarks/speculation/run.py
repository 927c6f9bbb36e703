"""Measures one case in four ways, and what the gate says of it.

    exact       read | asked: 200 tokens, prefilled and then decoded
    drafted     read | asked: the same with `acm.speculate`, the draft is decoded while the prompt is prefilled
    prefill     read | asked: one token
    decode      asked once more in the session of `exact`: its prompt is in the cache, from the first token to the last

The first three have a session and a salt each, and each case draws their order. `decode` follows `exact`. Nothing that
one way computes serves another. The gate: drafted and decoded answers have the tokens of `exact`, and all of them.
`exact` moved nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from acmserve.bench.agent.conversation import check_receipt
from acmserve.bench.harness.chat_stream import stream_chat
from acmserve.bench.provenance.drawn_order import draw_order
from acmserve.bench.speculation.cases import SpeculationCase
from acmserve.context.transcript.message import Message

EXACT, DRAFTED, PREFILL, DECODE = "exact", "drafted", "prefill", "decode"
WAYS = (EXACT, DRAFTED, PREFILL)
MOST_COMPUTED = 256
"""Tokens of a prompt that is in the cache: the last block, and a full one that vLLM computes again."""


@dataclass(slots=True)
class TimedAnswer:
    """Tokens with their text, and seconds since the request: to the first token, and to the last."""

    tokens: list[int] = field(default_factory=list)
    first_seconds: float = 0.0
    last_seconds: float = 0.0
    receipt: dict[str, Any] = field(default_factory=dict)
    speculation: dict[str, Any] = field(default_factory=dict)
    text: str = ""


AskServer = Callable[[dict[str, Any]], TimedAnswer]


def ask_timed(url: str, body: dict[str, Any]) -> TimedAnswer:
    """One streamed answer, token by token."""
    answer, begun = TimedAnswer(), time.monotonic()
    for chunk, now in stream_chat(url, body | {"stream": True, "return_token_ids": True}):
        tokens = [token for choice in chunk["choices"] for token in choice.get("token_ids") or ()]
        if tokens:
            answer.first_seconds = answer.first_seconds or now - begun
            answer.last_seconds = now - begun
            answer.tokens += tokens
        answer.text += "".join((choice.get("delta") or {}).get("content") or "" for choice in chunk["choices"])
        acm = chunk.get("acm") or {}
        answer.receipt = acm.get("receipt") or answer.receipt
        answer.speculation = acm.get("speculation") or answer.speculation
    return answer


def run_case(ask: AskServer, case: SpeculationCase, num_tokens: int) -> dict[str, Any]:
    """The row of one case, JSON-ready. `failures` is empty where all is right."""
    found: dict[str, TimedAnswer] = {}
    for name in draw_order(WAYS, case.kind, case.number):
        session = f"{case.kind} {case.number}, {name}"
        send(ask, session, case.read, 1)
        num_asked = 1 if name == PREFILL else num_tokens
        found[name] = send(ask, session, case.asked, num_asked, speculate=name == DRAFTED)
        if name == EXACT:
            found[DECODE] = send(ask, session, case.asked, num_tokens)
    return {
        "kind": case.kind,
        "number": case.number,
        "failures": [f"{case.kind} {case.number}: {what}" for what in find_failures(found, num_tokens)],
        "exact_seconds": found[EXACT].last_seconds,
        "drafted_seconds": found[DRAFTED].last_seconds,
        "prefill_seconds": found[PREFILL].last_seconds,
        "decode_seconds": found[DECODE].last_seconds - found[DECODE].first_seconds,
        "first_token_seconds": {name: answer.first_seconds for name, answer in found.items()},
        "prompt_tokens": found[EXACT].receipt.get("prompt_tokens"),
        "computed_tokens": found[EXACT].receipt.get("computed_tokens"),
        "num_same": num_same(found[EXACT].tokens, found[DRAFTED].tokens),
        "num_tokens": len(found[EXACT].tokens),
        **told_draft(found[DRAFTED]),
    }


def told_draft(answer: TimedAnswer) -> dict[str, Any]:
    """What an answer tells of its draft: its tokens, those accepted, and why it was not verified. JSON-ready."""
    told = answer.speculation
    counts = {name: told.get(name, 0) for name in ("drafted_tokens", "accepted_tokens")}
    return counts | {"reason": told.get("reason", "nothing was told of a draft")}


def find_failures(found: dict[str, TimedAnswer], num_tokens: int) -> list[str]:
    """Why the times of a case may not be reported."""
    failures = [what for name, answer in found.items() for what in check_receipt(answer.receipt, name)]
    if failures:
        return failures
    expected = found[EXACT].tokens
    if len(expected) != num_tokens:
        failures.append(f"exact gave {len(expected)} of {num_tokens} tokens")
    for name in (DRAFTED, DECODE):
        same = num_same(expected, found[name].tokens)
        if found[name].tokens != expected:
            failures.append(f"{name} gave other tokens than exact, from token {same} on")
    if found[PREFILL].tokens != expected[:1]:
        failures.append(f"prefill gave token {found[PREFILL].tokens}, exact {expected[:1]}")
    failures += [f"{name} moved KV" for name, answer in found.items() if answer.receipt["moved_tokens"]]
    if found[DECODE].receipt["computed_tokens"] > MOST_COMPUTED:
        failures.append(f"decode computed {found[DECODE].receipt['computed_tokens']} tokens of its prompt")
    return failures


def num_same(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens in front of the first difference."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def send(ask: AskServer, session: str, messages: Sequence[Message], num_tokens: int, **acm: Any) -> TimedAnswer:
    """One greedy answer of so many tokens, in a session with a salt of its own. `exact` and no draft, unless `acm` says
    otherwise.
    """
    own = {"session_id": session, "cache_salt": session, "acm": {"fidelity": "exact", "speculate": False} | acm}
    fields = {"messages": list(messages), "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    return ask({"model": "smollm2", **own, **fields})
