"""The runs of `bench precompute`: three on acmserve, and a stock engine that gets the very prompts of the first.

    run             trace --> request, after a pause as its tools would take --> receipts, seconds to the first token
    stock engine    the prompts of one run, message by message as its model saw them, in the same order

The model's words are scripted. What the weights would have said is written down on both sides
(`witnessed_model`). So a prompt whose KV is not exact shows in the first answer behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from acmserve.bench.agent.conversation import (
    LOW_WATERMARK,
    MAX_COMPLETION,
    MAX_TOKENS,
    ConversationRun,
    script_id,
)
from acmserve.bench.agent.pause import ANY_TOOL, PERSON, TOOL_SECONDS, describe_waits, draw_waits
from acmserve.bench.agent.scripted_agent import TOOLS, Trace
from acmserve.bench.agent.scripted_server import scripted_request
from acmserve.bench.harness.chat_stream import ask
from acmserve.bench.harness.run_log import counted
from acmserve.bench.models.witness import Agreement, compare, read_witness
from acmserve.context.episodes.delimiter import DELIMITER_TOOL
from acmserve.errors import AcmError
from acmserve.server.http.tenants import SALT_HEADER

CWL, CLEARING, THOUGHTS = "cwl", "clear_tool_uses", "thoughts"
BUDGET = {"max_tokens": MAX_TOKENS, "low_watermark": LOW_WATERMARK, "policy": CWL}
EDITS = [
    {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": MAX_TOKENS},
        "keep": {"type": "tool_uses", "value": 3},
        # Without it half of all turns clear a little, once what may not be cleared is over the trigger.
        "clear_at_least": {"type": "input_tokens", "value": 1500},
        "clear_tool_inputs": True,
    }
]
PREDICT, EXACT, REUSE, STOCK = "exact, predict", "exact", "reuse", "stock"
_SEED = 23
_IDLE_SECONDS = 600.0
_COUNTERS = (
    *("precomputed_tokens", "precomputed_used_tokens", "precomputed_wasted_tokens"),
    *("precomputed_left_tokens", "precomputed_seconds", "precompute_delay_seconds"),
)


def conditions_of(policy: str) -> dict[str, Any]:
    """JSON-ready: the pauses, and what takes something out where the template does not."""
    rules: dict[str, dict[str, Any]] = {
        CWL: {"max_tokens": MAX_TOKENS, "rules": BUDGET},
        CLEARING: {"rules": {"edits": EDITS}},
    }
    return {**rules.get(policy, {}), "tool_seconds": list(TOOL_SECONDS), "pauses": describe_waits(TOOL_SECONDS)}


def make_run(name: str, policy: str, fidelity: str, precompute: str) -> ConversationRun:
    """One run under a policy, before it has begun."""
    acm = {"fidelity": fidelity, "precompute": precompute}
    if policy == CWL:
        return ConversationRun(name, acm | {"budget": BUDGET})
    if policy == THOUGHTS:
        return ConversationRun(name, acm)
    return ConversationRun(name, acm, request={"context_management": {"edits": EDITS}})


def make_runs(policy: str) -> list[ConversationRun]:
    """The three runs on acmserve."""
    return [
        make_run(PREDICT, policy, "exact", "predict"),
        make_run(EXACT, policy, "exact", "off"),
        make_run(REUSE, policy, "reuse", "off"),
    ]


def held(policy: str, num_tokens: int) -> str:
    """What a policy makes of the conversation, for people: a clearing waits for enough to clear, above its trigger."""
    return f"under {num_tokens:,} tokens" if policy == CWL else f"cleared from {num_tokens:,} tokens on"


def pauses_of(trace: Trace, seed: int = _SEED) -> list[float]:
    """Seconds in front of each request: of people or tools, as real agents have them between those of `TOOL_SECONDS`.

    Kinds of tools are no matter here. Three in four calls of real agents run a shell, and most of this agent's read.
    """
    waits = [ANY_TOOL if request.asked is None else PERSON for request in trace.requests]
    return draw_waits(waits, seed, TOOL_SECONDS)


def sleeper(pauses: Sequence[float], sleep: Callable[[float], object] = time.sleep) -> Callable[[], object]:
    """What sleeps one of the pauses after the other.

    Every run waits, with precompute or without. A turn behind a pause may take longer by itself.
    """
    waiting = iter(pauses)
    return lambda: sleep(next(waiting))


def read_counters(url: str) -> dict[str, float]:
    """The engine's counters of precomputed tokens."""
    found = dict.fromkeys(_COUNTERS, 0.0)
    for line in httpx.get(f"{url}/metrics", timeout=60).text.splitlines():
        for name in _COUNTERS:
            if line.startswith(f"acmserve:{name}_total"):
                found[name] += float(line.rpartition(" ")[2])
    return found


def wait_until_idle(url: str, session: str) -> None:
    """Until the server has computed what may come next. The cache salt of a session is its name."""
    deadline = time.monotonic() + _IDLE_SECONDS
    while time.monotonic() < deadline:
        answer = httpx.get(f"{url}/v1/acm/sessions/{session}", headers={SALT_HEADER: session}, timeout=60)
        if not answer.raise_for_status().json()["precompute"]["working"]:
            return
        time.sleep(0.1)
    raise TimeoutError(f"{session}: the server never ends computing what may come next")


def replay_on_stock(url: str, run: ConversationRun, trace: Trace, say: Callable[[str], None]) -> ConversationRun:
    """The prompts of a run on a server without plugins: only what its own cache holds is kept.

    A turn whose prompt is not known is left out. That of the next one holds all of it.
    """
    stock = ConversationRun(STOCK, {})
    pause = sleeper(pauses_of(trace))
    for number, ((request, step, said), turn) in enumerate(zip(answers(trace), run.turns, strict=True)):
        if number % 20 == 0:
            say(counted(number + 1, len(run.turns), "turns of stock"))
        if turn.follows_pause:
            pause()
        if turn.prompt_messages is None:
            stock.turns.append(replace(turn, evicted=0, follows_pause=False))
            continue
        body = scripted_request(
            f"{script_id(STOCK, request)}/{step}",
            [said],
            MAX_COMPLETION,
            tools=[*TOOLS, DELIMITER_TOOL],
            messages=turn.prompt_messages,
            stream_options={"include_usage": True},
        )
        reply = ask(url, body)
        prompt, kept = reply.usage["prompt_tokens"], reply.usage["prompt_tokens_details"]["cached_tokens"]
        if prompt != turn.prompt:
            stock.failures.append(f"stock, turn {number}: the prompt has {prompt} tokens, {turn.prompt} with acmserve")
            return stock
        receipt = {"prompt_tokens": prompt, "kept_tokens": kept, "moved_tokens": 0, "computed_tokens": prompt - kept}
        stock.turns.append(replace(turn, receipt=receipt, seconds=reply.first_seconds))
    return stock


def agreement(run: ConversationRun, trace: Trace, witness: Path) -> Agreement:
    """Of a run with the stock engine, over all answers whose prompt is known.

    Raises AcmError where an answer was led otherwise.
    """
    said = read_witness(witness)
    ours, theirs = [], []
    for (request, step, _), turn in zip(answers(trace), run.turns, strict=True):
        if turn.prompt_messages is not None:
            ours.append(said[script_id(run.name, request), step])
            theirs.append(said[f"{script_id(STOCK, request)}/{step}", 0])
    try:
        return compare(ours, theirs)
    except ValueError as error:
        raise AcmError(f"{run.name} and the stock engine were not led the same way: {error}") from error


def answers(trace: Trace) -> Iterator[tuple[int, int, str]]:
    """The number of the request, the step in it, and what the model says, turn by turn."""
    for number, request in enumerate(trace.requests):
        for step, said in enumerate(request.said):
            yield number, step, said
