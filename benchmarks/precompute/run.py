"""Runs one agent's conversation with pauses through a server, and through a stock engine afterwards; `bench ahead`.

    course          trace --> request, after a pause as its tools would take --> receipts, seconds to the first token
    stock engine    the prompts of one course, message by message as its model saw them, in the same order

Every course has a cache salt of its own. The model's words are scripted; what the weights would have said is written
down on both sides (`witnessed_model`), so a prompt whose KV is not exact shows in the first answer behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from acmserve.bench.agent.pause import draw_pauses
from acmserve.bench.agent.scripted_agent import SYSTEM, TOOLS, Trace
from acmserve.bench.budget.run import LOW_WATERMARK, MAX_TOKENS, MODEL, Turn, as_turn, shown_messages
from acmserve.bench.harness.chat_stream import ask
from acmserve.bench.models.witnessed_model import Agreement, compare, read_witness
from acmserve.context.episodes.delimiter import DELIMITER_TOOL
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import AcmError

CWL, CLEARING = "cwl", "clear_tool_uses"
BUDGET = {"max_tokens": MAX_TOKENS, "low_watermark": LOW_WATERMARK, "policy": CWL}
# Without it half of all turns clear a little, once what may not be cleared is over the trigger.
CLEAR_AT_LEAST = 1500
EDITS = [
    {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": MAX_TOKENS},
        "keep": {"type": "tool_uses", "value": 3},
        "clear_at_least": {"type": "input_tokens", "value": CLEAR_AT_LEAST},
        "clear_tool_inputs": True,
    }
]
PREDICT, STOCK = "exact, predict", "stock"
_SEED = 23
_MAX_COMPLETION = 600
_PRECOMPUTE = ("precomputed_tokens", "precomputed_used_tokens", "precomputed_wasted_tokens", "precomputed_seconds")


@dataclass(slots=True)
class Course:
    """One treatment of the trace. `rests`: whether tools ran before the turn. `precompute`: the engine's counters.

    `prompts` are the messages of each turn, as the model saw them, None where that is not known any more; `failures`
    what was seen on the way.
    """

    name: str
    acm: dict[str, Any]
    turns: list[Turn] = field(default_factory=list)
    rests: list[bool] = field(default_factory=list)
    prompts: list[list[Message] | None] = field(default_factory=list)
    precompute: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Asked:
    """One turn of the trace on its own: the id of its script, and the line that is said."""

    script_id: str
    step: int
    said: str


def courses() -> list[Course]:
    """What is compared, but for the stock engine."""
    return [
        Course(PREDICT, {"fidelity": "exact", "precompute": "predict"}),
        Course("exact", {"fidelity": "exact", "precompute": "off"}),
        Course("reuse", {"fidelity": "reuse", "precompute": "off"}),
    ]


def script_id(course: str, number: int) -> str:
    """Of one request of a course."""
    return f"{course}-{number}"


def asked(trace: Trace, course: str) -> list[Asked]:
    """The turns of a course, in order."""
    return [
        Asked(script_id(course, number), step, said)
        for number, request in enumerate(trace.requests)
        for step, said in enumerate(request.said)
    ]


def run_course(
    url: str,
    trace: Trace,
    course: Course,
    policy: str,
    tokenizer: Tokenizer,
    rest: Callable[[], object],
    say: Callable[[str], None],
) -> None:
    """The whole trace in one session; `rest` in front of every request.

    Stops early when the model did not say what the script has.
    """
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    num_cleared = 0
    rules: dict[str, Any] = {"budget": BUDGET} if policy == CWL else {}
    for number, request in enumerate(trace.requests):
        if request.asked is not None:
            messages.append({"role": "user", "content": request.asked})
            say(f"{policy}, {course.name}: {request.asked}")
        rest()
        body = {
            "model": MODEL,
            "session_id": course.name,
            "cache_salt": course.name,
            "temperature": 0,
            "max_tokens": _MAX_COMPLETION,
            "tools": TOOLS,
            "messages": messages,
            "acm": {"tools": "cwl"} | rules | course.acm,
            "vllm_xargs": {"script_id": script_id(course.name, number), "script": list(request.said)},
        }
        if policy == CLEARING:
            body["context_management"] = {"edits": EDITS}
        reply = ask(url, body)
        if len(reply.steps) != len(request.said) or ("tool_calls" in reply.message) != (request.result is not None):
            course.failures.append(f"{course.name}: request {number} was answered with {reply.message}")
            return
        pairs = zip(reply.steps, reply.seconds, strict=True)
        turns = [as_turn(step, seconds, trace.descriptions, tokenizer) for step, seconds in pairs]
        turns[cleared_at(turns)].evicted += reply.cleared_tokens - num_cleared
        num_cleared = reply.cleared_tokens
        course.turns += turns
        course.rests += [index == 0 for index in range(len(reply.steps))]
        course.prompts += _prompts(shown_messages(url, course.name), turns)
        messages.append(reply.message)
        if request.result is not None:
            call = reply.message["tool_calls"][0]["id"]
            messages.append({"role": "tool", "tool_call_id": call, "content": request.result})


def cleared_at(turns: Sequence[Turn]) -> int:
    """In front of which completion of one request its edits cleared: inside a loop a prompt else only grows."""
    pairs = enumerate(pairwise(turns), start=1)
    return next((index for index, (before, turn) in pairs if turn.prompt < before.prompt), 0)


def held(policy: str, num_tokens: int) -> str:
    """What a policy makes of the conversation, for people: a clearing waits for enough to clear, above its trigger."""
    return f"under {num_tokens:,} tokens" if policy == CWL else f"cleared from {num_tokens:,} tokens on"


def tool_pauses(course: Course, scale: float) -> Callable[[], None]:
    """Sleeps as the tools would take, the same for every call of this function.

    Only where work is done ahead: for the other courses nothing happens meanwhile.
    """
    if course.acm["precompute"] == "off":
        return lambda: None
    pauses = (scale * seconds for seconds in draw_pauses(_SEED))
    return lambda: time.sleep(next(pauses))


def replay_on_stock(url: str, course: Course, trace: Trace, say: Callable[[str], None]) -> Course:
    """The prompts of a course on a server without plugins: only what its own cache holds is kept.

    A turn whose prompt is not known is left out; that of the next one holds all of it.
    """
    stock = Course(STOCK, {}, rests=list(course.rests))
    for number, (line, turn) in enumerate(zip(asked(trace, STOCK), course.turns, strict=True)):
        if number % 20 == 0:
            say(f"stock: turn {number + 1} of {len(course.turns)}")
        if course.prompts[number] is None:
            stock.turns.append(replace(turn, evicted=0))
            stock.rests[number] = False
            continue
        body = {
            "model": MODEL,
            "temperature": 0,
            "max_tokens": _MAX_COMPLETION,
            "tools": [*TOOLS, DELIMITER_TOOL],
            "messages": course.prompts[number],
            "stream_options": {"include_usage": True},
            "vllm_xargs": {"script_id": f"{line.script_id}/{line.step}", "script": [line.said]},
        }
        reply = ask(url, body)
        prompt, kept = reply.usage["prompt_tokens"], reply.usage["prompt_tokens_details"]["cached_tokens"]
        if prompt != turn.prompt:
            stock.failures.append(f"stock, turn {number}: the prompt has {prompt} tokens, {turn.prompt} with acmserve")
            return stock
        receipt = {"prompt_tokens": prompt, "kept_tokens": kept, "moved_tokens": 0, "computed_tokens": prompt - kept}
        stock.turns.append(replace(turn, receipt=receipt | {"precomputed_tokens": 0}, seconds=reply.first_seconds))
    return stock


def agreement(course: Course, trace: Trace, witness: Path) -> Agreement:
    """Of a course with the stock engine, over all answers whose prompt was known.

    Raises AcmError where an answer was led otherwise.
    """
    said = read_witness(witness)
    ours, theirs = [], []
    for mine, other, prompt in zip(asked(trace, course.name), asked(trace, STOCK), course.prompts, strict=True):
        if prompt is not None:
            ours.append(said[mine.script_id, mine.step])
            theirs.append(said[f"{other.script_id}/{other.step}", 0])
    try:
        return compare(ours, theirs)
    except ValueError as error:
        raise AcmError(f"{course.name} and the stock engine were not led the same way: {error}") from error


def check_course(course: Course, trace: Trace, policy: str) -> list[str]:
    """Why the numbers of a course may not be told."""
    failures = list(course.failures)
    if len(course.turns) != trace.num_turns:
        failures.append(f"{course.name}: {len(course.turns)} of {trace.num_turns} turns")
    for number, turn in enumerate(course.turns):
        counts = [turn.receipt[name] for name in ("kept_tokens", "moved_tokens", "computed_tokens")]
        if sum(counts) != turn.prompt or turn.receipt["precomputed_tokens"] > counts[0]:
            failures.append(f"{course.name}, turn {number}: the receipt does not add up: {turn.receipt}")
        if policy == CWL and (turn.prompt > MAX_TOKENS or turn.is_unmet):
            failures.append(f"{course.name}, turn {number}: {turn.prompt} tokens, the budget is {MAX_TOKENS}")
    return failures


def read_counters(url: str) -> dict[str, float]:
    """The engine's counters of work ahead."""
    found = dict.fromkeys(_PRECOMPUTE, 0.0)
    for line in httpx.get(f"{url}/metrics", timeout=60).text.splitlines():
        for name in _PRECOMPUTE:
            if line.startswith(f"acmserve:{name}_total"):
                found[name] += float(line.rpartition(" ")[2])
    return found


def _prompts(shown: Sequence[Message], turns: Sequence[Turn]) -> list[list[Message] | None]:
    """The prompts of the last turns: all in front of each of the last answers, unless something was evicted since.

    shown   [........ prompt of step 1 ........][answer 1][results][answer 2]
    """
    answers = [n for n, message in enumerate(shown) if message["role"] == "assistant"][-len(turns) :]
    is_same = [not any(turn.evicted for turn in turns[index + 1 :]) for index in range(len(turns))]
    return [list(shown[:end]) if same else None for end, same in zip(answers, is_same, strict=True)]
