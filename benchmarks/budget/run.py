"""Runs one conversation through the server under one budget and reads what each turn cost; the gates of `bench budget`.

    trace --> request --> completions with a receipt each --> the client's tool answers --> request --> ...

The client resends everything and never hears of evictions. Every course (policy, fidelity, watermark) gets the same
trace under a cache salt of its own, so none profits from another. A number stands only where every receipt adds up,
every completion was the scripted one, no prompt exceeds the budget and no call or result is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from acmserve.bench.agent.scripted_agent import SYSTEM, TOOLS, Trace, prompt_pieces
from acmserve.bench.harness.chat_stream import ask
from acmserve.context.episodes.delimiter import DELIMITER_TOOL
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.tokenizer import Tokenizer, count_tokens

MODEL = "scripted"
MAX_TOKENS = 6_000
LOW_WATERMARK = 3_600
MOST_COMPUTED_PER_NEW = 1.2
_MAX_COMPLETION = 600
_COUNTS = ("kept_tokens", "moved_tokens", "computed_tokens")


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to treat the trace. `policy` None: no budget."""

    name: str
    title: str
    policy: str | None = None
    fidelity: str = "exact"
    low_watermark: int = LOW_WATERMARK

    @property
    def budget(self) -> dict[str, Any]:
        """The budget as a request names it; empty without one."""
        if self.policy is None:
            return {}
        return {"max_tokens": MAX_TOKENS, "low_watermark": self.low_watermark, "policy": self.policy}


PLANS = (
    Plan("uncapped", "no budget"),
    Plan("recency", "recency, exact", "recency"),
    Plan("compaction", "compaction, exact", "compact"),
    Plan("cwl-single", "CWL exact, one at a time", "cwl", low_watermark=MAX_TOKENS),
    Plan("cwl-batched", "CWL exact, batched", "cwl"),
    Plan("cwl-moves", "CWL with moves, batched", "cwl", "reuse"),
)


@dataclass(slots=True)
class Turn:
    """One completion: what its prompt cost, what was evicted for it, and what the server answered to `delimiter`.

    `markers` are tokens of the notes that this turn's eviction left. `summary` are the tokens of the prompt and of the
    answer of the call that wrote a summary, (0, 0) without one.
    """

    receipt: dict[str, Any]
    seconds: float
    results: list[str]
    evicted: int = 0
    markers: int = 0
    summary: tuple[int, int] = (0, 0)
    is_unmet: bool = False

    @property
    def prompt(self) -> int:
        return int(self.receipt["prompt_tokens"])

    @property
    def computed(self) -> int:
        """Tokens that were computed for this prompt, without those of a summary."""
        return int(self.receipt["computed_tokens"])


@dataclass(slots=True)
class Course:
    """One plan carried out; `failures` are what was seen on the way."""

    plan: Plan
    turns: list[Turn] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def evictions(self) -> list[int]:
        """The turns in front of which something was evicted."""
        return [number for number, turn in enumerate(self.turns) if turn.evicted]

    def computed_per_new(self, new: Sequence[int]) -> float | None:
        """Computed over new tokens and markers, summaries included, from the first eviction on; None before one."""
        if not self.evictions:
            return None
        steady = range(self.evictions[0], len(self.turns))
        computed = sum(self.turns[n].computed + sum(self.turns[n].summary) for n in steady)
        return computed / sum(new[n] + self.turns[n].markers for n in steady)


def run_course(
    url: str, trace: Trace, plan: Plan, name: str, tokenizer: Tokenizer, progress: Callable[[str], None]
) -> Course:
    """The whole trace in one session. Stops early when the model did not say what the script has."""
    course = Course(plan)
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    acm = {"tools": "cwl", "fidelity": plan.fidelity} | ({"budget": plan.budget} if plan.budget else {})
    for number, request in enumerate(trace.requests):
        if request.asked is not None:
            messages.append({"role": "user", "content": request.asked})
            progress(f"{plan.title}: {request.asked}")
        body = {
            "model": MODEL,
            "session_id": name,
            "cache_salt": name,
            "temperature": 0,
            "max_tokens": _MAX_COMPLETION,
            "tools": TOOLS,
            "messages": messages,
            "acm": acm,
            "vllm_xargs": {"script_id": f"{name}-{number}", "script": list(request.said)},
        }
        reply = ask(url, body)
        if len(reply.steps) != len(request.said) or ("tool_calls" in reply.message) != (request.result is not None):
            course.failures.append(f"{plan.title}: request {number} was answered with {reply.message}")
            return course
        turns = [
            as_turn(step, seconds, trace.descriptions, tokenizer)
            for step, seconds in zip(reply.steps, reply.seconds, strict=True)
        ]
        course.turns += turns
        messages.append(reply.message)
        if request.result is not None:
            call = reply.message["tool_calls"][0]["id"]
            messages.append({"role": "tool", "tool_call_id": call, "content": request.result})
        if any(turn.evicted for turn in turns) or number == len(trace.requests) - 1:
            alone = orphans(shown_messages(url, name), waiting=request.result is not None)
            course.failures += [f"{plan.title}, request {number}: {what}" for what in alone]
    return course


def as_turn(step: Mapping[str, Any], seconds: float, descriptions: Mapping[str, str], tokenizer: Tokenizer) -> Turn:
    """What the answer says of one completion."""
    budget = step.get("budget") or {}
    notes = [
        f"[explored {item['episode']}: {descriptions[item['episode']]}]"
        for item in budget.get("evicted", ())
        if item["episode"] in descriptions and "remove" in item["levels"]
    ]
    told = budget.get("summary") or {}
    return Turn(
        receipt=dict(step["receipt"]),
        seconds=seconds,
        results=[operation["result"] for operation in step["operations"]],
        evicted=budget.get("evicted_tokens", 0),
        markers=sum(count_tokens(tokenizer, note) for note in notes),
        summary=(told.get("input_tokens") or 0, told.get("output_tokens") or 0),
        is_unmet=budget.get("unmet") is not None,
    )


def orphans(messages: Sequence[Message], *, waiting: bool = False) -> list[str]:
    """Results without their call, and calls without a result; with `waiting` the last message's calls may have none."""
    open_calls: dict[str, int] = {}
    found = []
    for index, message in enumerate(messages):
        open_calls |= {call["id"]: index for call in message.get("tool_calls") or ()}
        if message["role"] == "tool" and open_calls.pop(message["tool_call_id"], None) is None:
            found.append(f"a result stands without its call, {message['tool_call_id']}")
    last = max((n for n, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    left = [name for name, index in open_calls.items() if not (waiting and index == last)]
    return [*found, *(f"a call stands without its result, {name}" for name in left)]


def new_tokens(trace: Trace, course: Course, tokenizer: Any, template: str) -> list[int]:
    """Tokens that each turn brings, by the tokenizer and the chat template alone: no engine, no budget.

    `tokenizer` is that of `transformers`. Results of `delimiter` are taken from a course.
    """
    messages: list[dict[str, Any]] = []
    before, new = "", []
    for piece in prompt_pieces(trace, [turn.results for turn in course.turns]):
        messages += piece
        prompt = tokenizer.apply_chat_template(
            messages,
            tools=[*TOOLS, DELIMITER_TOOL],
            chat_template=template,
            add_generation_prompt=True,
            tokenize=False,
        )
        new.append(len(tokenizer.encode(prompt.removeprefix(before), add_special_tokens=False)))
        before = prompt
    return new


def check_course(course: Course, trace: Trace, new: Sequence[int]) -> list[str]:
    """Why the numbers of a course may not be reported; empty when they may."""
    title, failures = course.plan.title, list(course.failures)
    if len(course.turns) != trace.num_turns:
        return [*failures, f"{title}: {len(course.turns)} of {trace.num_turns} turns"]
    for number, turn in enumerate(course.turns):
        receipt, before = turn.receipt, course.turns[number - 1].prompt if number else 0
        if sum(receipt[count] for count in _COUNTS) != turn.prompt:
            failures.append(f"{title}, turn {number}: the receipt does not add up: {receipt}")
        if not turn.evicted and turn.prompt - before != new[number]:
            failures.append(f"{title}, turn {number}: {turn.prompt - before} new tokens, the trace has {new[number]}")
        if course.plan.policy is not None and (turn.prompt > MAX_TOKENS or turn.is_unmet):
            failures.append(f"{title}, turn {number}: {turn.prompt} tokens, the budget is {MAX_TOKENS}")
    share = course.computed_per_new(new)
    if course.plan.fidelity == "reuse" and share is not None and share > MOST_COMPUTED_PER_NEW:
        failures.append(f"{title}: {share:.2f} tokens computed for each new one, above {MOST_COMPUTED_PER_NEW}")
    return failures


def shown_messages(url: str, name: str) -> list[Message]:
    """The messages that the model sees."""
    answer = httpx.get(f"{url}/v1/acm/sessions/{name}/context", headers={"X-Cache-Salt": name}, timeout=60)
    return [item["message"] for item in answer.raise_for_status().json()["messages"] if item["message"] is not None]
