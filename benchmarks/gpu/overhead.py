"""What requests without a session pay for the plugin: the same plain requests on two engines, in turns. One stage.

Several conversations at a time read a prompt and go on with it, so prefill, prefix cache and decode are all in it. The
gate: vLLM finds the same tokens in both caches. The bar is one hundredth, of the whole time, by the worse end of the
interval. On a CPU the times mean nothing. `bench step-instructions` counts there.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from acmserve.bench.agent.estimates import bootstrap_interval
from acmserve.bench.gpu.engine_pair import EnginePair
from acmserve.bench.gpu.served_model import ServedModel
from acmserve.bench.gpu.stage import holds_bar
from acmserve.bench.harness.engine import Ask, PlayedSessions
from acmserve.bench.harness.options import as_gate
from acmserve.bench.harness.run_log import counted, progress
from acmserve.bench.provenance.drawn_order import draw_order

MAX_OVERHEAD = 1.01
NUM_SESSIONS, NUM_TURNS, PROMPT_TOKENS, NEW_TOKENS, ANSWER_TOKENS = 16, 4, 1024, 64, 64
LONGEST = PROMPT_TOKENS + NUM_TURNS * NEW_TOKENS + ANSWER_TOKENS
OURS, STOCK = "acmserve", "stock"
_NUM_SAMPLES = 2_000


def measure_overhead(pair: EnginePair, num_sessions: int, num_repetitions: int) -> dict[str, Any]:
    """JSON-ready. A repetition in front of the others warms up."""
    played: dict[str, list[PlayedSessions]] = {OURS: [], STOCK: []}
    for repetition in range(num_repetitions + 1):
        what = f"{num_sessions} conversations without session"
        progress(counted(repetition, num_repetitions, what) if repetition else f"{what}: warm-up, not counted")
        for name in draw_order((OURS, STOCK), "overhead", repetition):
            engine = pair.ours if name == OURS else pair.stock
            found = engine.play(plan_conversations(pair.model, num_sessions, repetition))
            played[name] += [found] if repetition else []
    return overhead_report(played[OURS], played[STOCK])


def plan_conversations(model: ServedModel, number: int, repetition: int) -> list[list[Ask]]:
    """Plain requests, and other ones in each repetition. Pure."""
    return [_plan_conversation(model, f"overhead {repetition} {place}") for place in range(number)]


def _plan_conversation(model: ServedModel, key: str) -> list[Ask]:
    text = model.draw_tokens(PROMPT_TOKENS + NUM_TURNS * NEW_TOKENS, key)
    lengths = range(PROMPT_TOKENS, len(text), NEW_TOKENS)
    return [Ask(text[:length], key, max_tokens=ANSWER_TOKENS, ignore_eos=True) for length in lengths]


def overhead_report(ours: Sequence[PlayedSessions], stock: Sequence[PlayedSessions]) -> dict[str, Any]:
    """Seconds of each repetition, and their ratio with an interval of pairs. Pure."""
    found = [_cached(one) for one in ours]
    expected = [_cached(one) for one in stock]
    failures = [
        f"repetition {number}: acmserve found {one} tokens in its cache, stock {other}"
        for number, (one, other) in enumerate(zip(found, expected, strict=True), start=1)
        if one != other
    ]
    pairs = [(one.seconds, other.seconds) for one, other in zip(ours, stock, strict=True)]
    over = {"ratio": round(_over(pairs), 4), "interval": bootstrap_interval(pairs, _over, _NUM_SAMPLES)}
    return {
        "gate": as_gate(failures),
        "conversations": len(ours[0].replies),
        "turns": sum(map(len, ours[0].replies)),
        "cached_tokens": sum(map(sum, expected[0])),
        "seconds": {OURS: [one for one, _ in pairs], STOCK: [other for _, other in pairs]},
        "over_stock": over,
        "bar": MAX_OVERHEAD,
        "is_met": holds_bar(over, MAX_OVERHEAD),
    }


def _cached(played: PlayedSessions) -> list[list[int]]:
    return [[reply.cached_tokens for reply in replies] for replies in played.replies]


def _over(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.median(one for one, _ in pairs) / statistics.median(other for _, other in pairs)
