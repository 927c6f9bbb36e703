"""Plays the scripted agent's conversation on a server in one way, and reads what every completion cost.

    trace --> request --> completions with a receipt each --> the client's tool answers --> request --> ...

The client resends everything and never hears of evictions. Every run has a session and a cache salt of its own, so none
profits from another. `check_run` says why the numbers of a run may not be reported. The module knows no policy and no
table: what a run tries is the `acm` object of its requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx

from acmserve.bench.agent.scripted_agent import SYSTEM, TOOLS, Trace
from acmserve.bench.agent.scripted_server import scripted_request
from acmserve.bench.harness.chat_stream import ask
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.tokenizer import Tokenizer, count_tokens

MAX_TOKENS, LOW_WATERMARK = 6_000, 3_600
MAX_COMPLETION = 600
COUNTS = ("kept_tokens", "moved_tokens", "computed_tokens")


@dataclass(slots=True)
class ConversationTurn:
    """One completion: what its prompt cost, and what was evicted for it.

    `markers` are tokens of the notes that the eviction left. `summary` are the tokens computed and written for a
    summary, `num_summary_read` those that it read, most of which may have been in the cache.
    `prompt_messages` are the messages as the model saw them, None where they are not known.
    """

    receipt: dict[str, Any]
    seconds: float
    evicted: int = 0
    markers: int = 0
    summary: tuple[int, int] = (0, 0)
    num_summary_read: int = 0
    is_unmet: bool = False
    follows_pause: bool = True
    prompt_messages: list[Message] | None = None

    @property
    def prompt(self) -> int:
        return int(self.receipt["prompt_tokens"])

    @property
    def computed(self) -> int:
        """Tokens that were computed for this prompt, without those of a summary."""
        return int(self.receipt["computed_tokens"])


@dataclass(slots=True)
class ConversationRun:
    """One way to treat the conversation, and what came of it. `request` is added to every request of the run."""

    name: str
    acm: Mapping[str, Any]
    title: str = ""
    request: Mapping[str, Any] = field(default_factory=dict)
    turns: list[ConversationTurn] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def evictions(self) -> list[int]:
        """The turns in front of which something was evicted."""
        return [number for number, turn in enumerate(self.turns) if turn.evicted]

    def columns(self) -> dict[str, list[Any]]:
        """What a report keeps of every turn, JSON-ready."""
        return {
            "seconds": [round(turn.seconds, 4) for turn in self.turns],
            "prompt_tokens": [turn.prompt for turn in self.turns],
            "computed_tokens": [turn.computed for turn in self.turns],
            "moved_tokens": [turn.receipt["moved_tokens"] for turn in self.turns],
            "precomputed_tokens": [turn.receipt.get("precomputed_tokens", 0) for turn in self.turns],
            "evicted_tokens": [turn.evicted for turn in self.turns],
            "summary_tokens": [sum(turn.summary) for turn in self.turns],
            "follows_pause": [int(turn.follows_pause) for turn in self.turns],
        }


def run_conversation(
    url: str,
    trace: Trace,
    run: ConversationRun,
    tokenizer: Tokenizer,
    say: Callable[[str], None],
    *,
    pause: Callable[[], object] = lambda: None,
    keep_prompts: bool = False,
) -> None:
    """Fill `run` with the turns of the whole trace. `pause` comes in front of every request.

    The run ends early when the model did not say what the script has.
    """
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    num_cleared = 0
    for number, request in enumerate(trace.requests):
        if request.asked is not None:
            messages.append({"role": "user", "content": request.asked})
            say(f"{run.title or run.name}: {request.asked}")
        pause()
        acm = {"tools": "cwl", **run.acm}
        fields = {"tools": TOOLS, "messages": messages, "acm": acm, **run.request}
        script = script_id(run.name, number)
        reply = ask(url, scripted_request(script, request.said, MAX_COMPLETION, run.name, **fields))
        if len(reply.steps) != len(request.said) or ("tool_calls" in reply.message) != (request.result is not None):
            run.failures.append(f"{run.name}: request {number} was answered with {reply.message}")
            return
        pairs = zip(reply.steps, reply.seconds, strict=True)
        turns = [read_turn(step, seconds, trace.descriptions, tokenizer) for step, seconds in pairs]
        turns[cleared_at(turns)].evicted += reply.cleared_tokens - num_cleared
        num_cleared = reply.cleared_tokens
        for index, turn in enumerate(turns):
            turn.follows_pause = index == 0
        run.turns += turns
        if keep_prompts or number == len(trace.requests) - 1 or any(turn.evicted for turn in turns):
            shown = _shown_messages(url, run.name)
            alone = orphans(shown, waiting=request.result is not None)
            run.failures += [f"{run.name}, request {number}: {what}" for what in alone]
            if keep_prompts:
                _keep_prompts(shown, turns)
        messages.append(reply.message)
        if request.result is not None:
            call = reply.message["tool_calls"][0]["id"]
            messages.append({"role": "tool", "tool_call_id": call, "content": request.result})


def check_run(run: ConversationRun, trace: Trace) -> list[str]:
    """Why the numbers of a run may not be reported. Empty when they may."""
    failures = list(run.failures)
    if len(run.turns) != trace.num_turns:
        failures.append(f"{run.name}: {len(run.turns)} of {trace.num_turns} turns")
    most = run.acm["budget"]["max_tokens"] if "budget" in run.acm else None
    for number, turn in enumerate(run.turns):
        where = f"{run.name}, turn {number}"
        failures += check_receipt(turn.receipt, where)
        if most is not None and (turn.prompt > most or turn.is_unmet):
            failures.append(f"{where}: {turn.prompt} tokens, the budget is {most}")
    return failures


def check_receipt(receipt: Mapping[str, Any], where: str) -> list[str]:
    """Kept, moved and computed tokens are the prompt. What was computed before it was asked for is kept."""
    is_whole = bool(receipt) and sum(receipt[count] for count in COUNTS) == receipt["prompt_tokens"]
    if is_whole and receipt.get("precomputed_tokens", 0) <= receipt["kept_tokens"]:
        return []
    return [f"{where}: the receipt does not add up: {receipt}"]


def script_id(run: str, number: int) -> str:
    """The script of one request of a run."""
    return f"{run}-{number}"


def read_turn(
    step: Mapping[str, Any], seconds: float, descriptions: Mapping[str, str], tokenizer: Tokenizer
) -> ConversationTurn:
    """What the answer says of one completion."""
    budget = step.get("budget") or {}
    notes = [
        f"[explored {item['episode']}: {descriptions[item['episode']]}]"
        for item in budget.get("evicted", ())
        if item["episode"] in descriptions and "remove" in item["levels"]
    ]
    summary = budget.get("summary") or {}
    num_read = summary.get("input_tokens") or 0
    return ConversationTurn(
        receipt=dict(step["receipt"]),
        seconds=seconds,
        evicted=budget.get("evicted_tokens", 0),
        markers=sum(count_tokens(tokenizer, note) for note in notes),
        summary=(summary.get("computed_tokens", num_read), summary.get("output_tokens") or 0),
        num_summary_read=num_read,
        is_unmet=budget.get("unmet") is not None,
    )


def cleared_at(turns: Sequence[ConversationTurn]) -> int:
    """In front of which completion of one request its edits cleared: inside a loop a prompt else only grows."""
    pairs = enumerate(pairwise(turns), start=1)
    return next((index for index, (before, turn) in pairs if turn.prompt < before.prompt), 0)


def orphans(messages: Sequence[Message], *, waiting: bool = False) -> list[str]:
    """Results without their call, and calls without a result. With `waiting` the last message's calls may have none."""
    open_calls: dict[str, int] = {}
    found = []
    for index, message in enumerate(messages):
        open_calls |= {call["id"]: index for call in message.get("tool_calls") or ()}
        if message["role"] == "tool" and open_calls.pop(message["tool_call_id"], None) is None:
            found.append(f"a result stands without its call, {message['tool_call_id']}")
    last = max((n for n, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    left = [name for name, index in open_calls.items() if not (waiting and index == last)]
    return [*found, *(f"a call stands without its result, {name}" for name in left)]


def _shown_messages(url: str, name: str) -> list[Message]:
    """The messages that the model sees."""
    answer = httpx.get(f"{url}/v1/acm/sessions/{name}/context", headers={"X-Cache-Salt": name}, timeout=60)
    return [item["message"] for item in answer.raise_for_status().json()["messages"] if item["message"] is not None]


def _keep_prompts(shown: Sequence[Message], turns: Sequence[ConversationTurn]) -> None:
    """The prompt of a turn is all in front of its answer, unless something was evicted since.

    shown   [........ prompt of step 1 ........][answer 1][results][answer 2]
    """
    answers = [n for n, message in enumerate(shown) if message["role"] == "assistant"][-len(turns) :]
    for index, (end, turn) in enumerate(zip(answers, turns, strict=True)):
        if not any(later.evicted for later in turns[index + 1 :]):
            turn.prompt_messages = list(shown[:end])
