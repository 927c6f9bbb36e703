"""Plays a conversation with drafts and without, and counts each token of an answer that is not that of `exact`.

    exact      read | turn 1 | turn 2
    drafted    the same with `acm.speculate`
    reuse      the control, of one conversation of each kind: what moved KV says, shown as if it were exact

Each way has a session and a salt of its own, and each turn draws their order. A turn goes on behind the answer of
`exact` in every way, so that one wrong answer is counted once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acmserve.bench.agent.conversation import check_receipt
from acmserve.bench.provenance.drawn_order import draw_order
from acmserve.bench.speculation.conversations import KINDS, TURNS, FoldedConversation
from acmserve.bench.speculation.run import DRAFTED, EXACT, AskServer, TimedAnswer, num_same, send, told_draft

REUSE = "reuse"
NUM_CONTROLS = len(KINDS)
_ACM: dict[str, dict[str, Any]] = {EXACT: {}, DRAFTED: {"speculate": True}, REUSE: {"fidelity": REUSE}}


def play(ask: AskServer, conversation: FoldedConversation, num_tokens: int) -> dict[str, Any]:
    """The record of one conversation, JSON-ready."""
    kind, number = conversation.kind, conversation.number
    ways = [EXACT, DRAFTED, *([REUSE] if number < NUM_CONTROLS else [])]
    sessions = {way: f"conversation {number}, {way}" for way in ways}
    for way in ways:
        send(ask, sessions[way], conversation.read, 1, **_ACM[way])
    answers: list[str] = []
    turns = []
    for turn in range(TURNS):
        asked = conversation.asked(answers)
        found = {
            way: send(ask, sessions[way], asked, num_tokens, **_ACM[way]) for way in draw_order(ways, number, turn)
        }
        turns.append(compare_turn(found, num_tokens, f"conversation {number}, turn {turn + 1}"))
        answers.append(found[EXACT].text)
    return {"kind": kind, "number": number, "turns": turns}


def compare_turn(found: dict[str, TimedAnswer], num_tokens: int, where: str) -> dict[str, Any]:
    """The record of one turn: what its draft came to, and how many tokens are others. `failures` turn the gate red."""
    exact, drafted = found[EXACT], found[DRAFTED]
    failures = [what for way, answer in found.items() for what in check_receipt(answer.receipt, f"{where}, {way}")]
    if not failures:
        failures = [f"{where}: {way} moved KV" for way in (EXACT, DRAFTED) if found[way].receipt["moved_tokens"]]
    if len(exact.tokens) != num_tokens:
        failures.append(f"{where}: exact gave {len(exact.tokens)} of {num_tokens} tokens")
    num_differing = count_differing(exact.tokens, drafted.tokens)
    if num_differing:
        place = num_same(exact.tokens, drafted.tokens)
        failures.append(f"{where}: other tokens than under exact: {num_differing}, from token {place} on")
    record: dict[str, Any] = {
        "failures": failures,
        "prompt_tokens": exact.receipt.get("prompt_tokens"),
        "computed_tokens": exact.receipt.get("computed_tokens"),
        "num_tokens": len(exact.tokens),
        "num_differing": num_differing,
        **told_draft(drafted),
    }
    if num_differing:
        record["other_answers"] = {EXACT: exact.tokens, DRAFTED: drafted.tokens}
    if REUSE in found:
        moved = found[REUSE]
        control = {"num_tokens": len(moved.tokens), "num_differing": count_differing(exact.tokens, moved.tokens)}
        record["control"] = control | {"moved_tokens": moved.receipt.get("moved_tokens", 0)}
    return record


def count_differing(expected: Sequence[int], found: Sequence[int]) -> int:
    """Places with another token. One that only one of them has is another one."""
    differing = sum(one != other for one, other in zip(expected, found, strict=False))
    return differing + abs(len(expected) - len(found))
