"""Runs one workload through the server's tool loop and reads what it cost. The checks of `acmserve bench sculptor`.

    question --> loop: steps with a receipt each --> answer --> one more question

Read-only steps have to compute only what they appended. Folds have to move the text behind them once, or compute it
under `exact`. A number stands only where these hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from acmserve.bench.agent.conversation import check_receipt
from acmserve.bench.agent.scripted_server import scripted_request
from acmserve.bench.harness.chat_stream import ask
from acmserve.bench.harness.workloads import Workload

FOLLOW_UP = "Thank you. Say it once more."
_READ_ONLY = frozenset({"fragment_context", "search_context", "get_search_detail"})


@dataclass(slots=True)
class WorkloadRun:
    """One run: its steps in order, the last of which gave the answer, and two times to first token."""

    workload: str
    fidelity: str
    steps: list[dict[str, Any]] = field(default_factory=list)
    answer: str = ""
    seconds_to_answer: float = 0.0
    seconds_to_follow_up: float = 0.0
    follow_up: dict[str, Any] = field(default_factory=dict)

    @property
    def receipts(self) -> list[dict[str, Any]]:
        return [step["receipt"] for step in self.steps]

    @property
    def operations(self) -> list[list[dict[str, Any]]]:
        """What the tools did behind each step."""
        return [step["operations"] for step in self.steps]

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


def run_workload(
    url: str, workload: Workload, script: list[str], fidelity: str, name: str, commit: str = "now"
) -> WorkloadRun:
    """Ask the workload's question, let the scripted model work, ask once more. Nothing is shared between two names."""
    acm = {"tools": "sculptor", "preset": workload.preset, "fidelity": fidelity, "commit": commit}
    body = scripted_request(name, [*script, "It is as I said."], 1500, name)
    first = ask(url, body | {"messages": workload.messages, "acm": acm | {"first_call_required": True}})
    again = [*workload.messages, first.message, {"role": "user", "content": FOLLOW_UP}]
    second = ask(url, body | {"messages": again, "acm": acm | {"first_call_required": False}})
    return WorkloadRun(
        workload=workload.name,
        fidelity=fidelity,
        steps=first.steps,
        answer=first.message["content"],
        seconds_to_answer=first.seconds[-1],
        seconds_to_follow_up=second.first_seconds,
        follow_up=second.steps[-1]["receipt"],
    )


def check_workload_run(run: WorkloadRun, workload: Workload) -> list[str]:
    """Why the numbers of a run may not be reported. Empty when they may."""
    where = f"{run.workload}, {run.fidelity}"
    receipts = (*run.receipts, run.follow_up)
    failures = [failure for receipt in receipts for failure in check_receipt(receipt, where)]
    if run.fidelity == "exact" and (num_moved := sum(receipt["moved_tokens"] for receipt in receipts)):
        failures.append(f"{where}: {num_moved} tokens were moved")
    if run.answer != workload.answer:
        failures.append(f"{where}: the answer is {run.answer[:60]!r}")
    wrong = [op for step in run.operations for op in step if op["is_error"]]
    failures += [f"{where}: {op['tool']} was refused: {op['result']}" for op in wrong]
    for (before, after), done in zip(pairwise(run.receipts), run.operations, strict=False):
        appended = after["prompt_tokens"] - before["prompt_tokens"]
        if {op["tool"] for op in done} <= _READ_ONLY:
            if after["computed_tokens"] > appended or after["moved_tokens"]:
                failures.append(f"{where}: a read-only step appended {appended} tokens and has the receipt {after}")
        elif run.fidelity == "reuse" and len(after["moves"]) != 1:
            failures.append(f"{where}: {len(done)} folds moved {len(after['moves'])} pieces: {after}")
    return failures
