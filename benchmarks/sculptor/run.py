"""Runs one workload through the server's tool loop and reads what it cost; the checks of `acmserve bench sculptor`.

    question --> loop: steps with a receipt each --> answer --> one more question, streamed

Read-only steps have to compute only what they appended, folds have to move the text behind them once (or compute it,
under `exact`), and every receipt has to add up. A number stands only where these hold.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from acmserve.bench.harness.chat_stream import stream_chat
from acmserve.bench.harness.workloads import Workload

FOLLOW_UP = "Thank you. Say it once more."
_READ_ONLY = frozenset({"fragment_context", "search_context", "get_search_detail"})
_COUNTS = ("kept_tokens", "moved_tokens", "computed_tokens")


@dataclass(slots=True)
class Course:
    """One run: the receipts of its steps in order, the operations before each, and two times to first token."""

    workload: str
    fidelity: str
    receipts: list[dict[str, Any]] = field(default_factory=list)
    operations: list[list[dict[str, Any]]] = field(default_factory=list)
    answer: str = ""
    seconds_to_answer: float = 0.0
    seconds_to_follow_up: float = 0.0
    follow_up: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens_before(self) -> int:
        """Context before the first tool call."""
        return int(self.receipts[0]["prompt_tokens"])

    @property
    def tokens_after(self) -> int:
        """Context from which the answer was given."""
        return int(self.receipts[-1]["prompt_tokens"])

    def paid(self, count: str) -> int:
        """Sum over the steps behind the first one, which has to read the text in any case."""
        return sum(int(receipt[count]) for receipt in self.receipts[1:])


def run_course(url: str, workload: Workload, script: list[str], fidelity: str, name: str) -> Course:
    """Ask the workload's question, let the scripted model work, ask once more. Nothing is shared between two names."""
    course = Course(workload.name, fidelity)
    body = {
        "model": "scripted",
        "session_id": name,
        "cache_salt": name,
        "stream": True,
        "temperature": 0,
        "max_tokens": 1500,
        "acm": {"tools": "sculptor", "first_call_required": True, "preset": workload.preset, "fidelity": fidelity},
        "vllm_xargs": {"script_id": name, "script": [*script, "It is as I said."]},
    }
    last_operation = time.monotonic()
    for chunk, now in stream_chat(url, body | {"messages": workload.messages}):
        acm = chunk.get("acm") or {}
        if acm.get("event") == "receipt":
            course.receipts.append(acm["receipt"])
            course.operations.append([])
        elif acm.get("event") == "tool":
            course.operations[-1].append(acm)
            last_operation = now
        text = chunk["choices"][0]["delta"].get("content")
        if text and not course.answer:
            course.seconds_to_answer = now - last_operation
        course.answer += text or ""
    again = [
        *workload.messages,
        {"role": "assistant", "content": course.answer},
        {"role": "user", "content": FOLLOW_UP},
    ]
    body["acm"] = body["acm"] | {"first_call_required": False}  # type: ignore[operator]
    start = time.monotonic()
    for chunk, now in stream_chat(url, body | {"messages": again}):
        if chunk["choices"][0]["delta"].get("content") and not course.seconds_to_follow_up:
            course.seconds_to_follow_up = now - start
        if (chunk.get("acm") or {}).get("event") == "receipt":
            course.follow_up = chunk["acm"]["receipt"]
    return course


def check_course(course: Course, workload: Workload) -> list[str]:
    """Why the numbers of a run may not be reported; empty when they may."""
    where = f"{course.workload}, {course.fidelity}"
    failures: list[str] = []
    if course.answer != workload.answer:
        failures.append(f"{where}: the answer is {course.answer[:60]!r}")
    wrong = [op for step in course.operations for op in step if op["is_error"]]
    failures += [f"{where}: {op['tool']} was refused: {op['result']}" for op in wrong]
    for receipt in [*course.receipts, course.follow_up]:
        if not receipt or sum(receipt[count] for count in _COUNTS) != receipt["prompt_tokens"]:
            failures.append(f"{where}: a receipt does not add up: {receipt}")
            return failures
    for before, after, done in zip(course.receipts, course.receipts[1:], course.operations, strict=False):
        appended = after["prompt_tokens"] - before["prompt_tokens"]
        if {op["tool"] for op in done} <= _READ_ONLY:
            if after["computed_tokens"] > appended or after["moved_tokens"]:
                failures.append(f"{where}: a read-only step appended {appended} tokens and has the receipt {after}")
        elif course.fidelity == "reuse" and len(after["moves"]) != 1:
            failures.append(f"{where}: {len(done)} folds moved {len(after['moves'])} pieces: {after}")
    return failures
