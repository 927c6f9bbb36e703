"""What one completion cost, as the server tells it: by its receipt where it has one, else by the usage. Pure.

    acm.steps   a receipt for each completion of a tool loop       kept, moved, computed, and in which branch
    acm.receipt the receipt of one completion                      kept, moved, computed
    usage       cached tokens count as kept, all others as computed

The output of a loop is told for all its completions together, and stands with the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Completion:
    """Tokens of one prompt and of what was written behind it. `kept + moved + computed` is the prompt.

    `branch` names the branch that it belongs to, and is "" in the main thread.
    """

    kept: int
    moved: int
    computed: int
    output: int = 0
    branch: str = ""

    @property
    def prompt(self) -> int:
        return self.kept + self.moved + self.computed


@dataclass(frozen=True, slots=True)
class EvalAnswer:
    """An answer as the evaluation needs it: `tools` counts the calls of context tools by name.

    `num_errors` are calls that were wrong or could not be read. `unmet` says whether a budget was broken. `summaries`
    are requests of their own, one for each summary that a budget asked for. `is_cut`: it ended at the bound of its
    tokens. None where the server tells no reason.
    """

    text: str
    completions: tuple[Completion, ...]
    tools: Counter[str]
    num_errors: int = 0
    unmet: bool = False
    summaries: tuple[Completion, ...] = ()
    is_cut: bool | None = None


def read_answer(payload: Mapping[str, Any]) -> EvalAnswer:
    """The answer of a chat request."""
    acm, usage = payload.get("acm") or {}, payload.get("usage") or {}
    steps = acm.get("steps") or []
    receipts = [(step["receipt"], step.get("branch") or "") for step in steps if step.get("receipt")]
    told = receipts or [(acm.get("receipt"), "")]
    found = [_of_receipt(receipt, branch) if receipt else _of_usage(usage) for receipt, branch in told]
    found[-1] = replace(found[-1], output=int(usage.get("completion_tokens") or 0))
    operations = [operation for step in steps for operation in step.get("operations") or ()]
    num_wrong = sum(bool(operation.get("is_error")) for operation in operations)
    # A loop tells the budget of its last step as that of the answer, too.
    budgets = [step["budget"] for step in steps if step.get("budget")] or [acm.get("budget") or {}]
    return EvalAnswer(
        text=_text(payload),
        completions=tuple(found),
        tools=Counter(str(operation["tool"]) for operation in operations),
        num_errors=num_wrong + len(acm.get("format_errors") or ()),
        unmet=any(budget.get("unmet") for budget in budgets),
        summaries=tuple(_of_summary(budget["summary"]) for budget in budgets if budget.get("summary")),
        is_cut=_is_cut(payload),
    )


def _of_summary(summary: Mapping[str, Any]) -> Completion:
    """One that was asked for behind the conversation found most of it in the cache. Any other one was computed."""
    wrote = int(summary.get("output_tokens") or 0)
    if summary.get("form") == "appended":
        return replace(_of_receipt(summary, ""), output=wrote)
    return Completion(0, 0, int(summary.get("input_tokens") or 0), wrote)


def _text(payload: Mapping[str, Any]) -> str:
    choices: Sequence[Mapping[str, Any]] = payload.get("choices") or ()
    content = (choices[0].get("message") or {}).get("content") if choices else None
    return content if isinstance(content, str) else ""


def _is_cut(payload: Mapping[str, Any]) -> bool | None:
    choices: Sequence[Mapping[str, Any]] = payload.get("choices") or ()
    reason = choices[0].get("finish_reason") if choices else None
    return None if reason is None else reason == "length"


def longest_main(completions: Sequence[Completion]) -> int:
    """Tokens of the longest prompt of the main thread. 0 where there is none."""
    return max((one.prompt for one in completions if not one.branch), default=0)


def _of_receipt(receipt: Mapping[str, Any], branch: str) -> Completion:
    kept, moved, computed = (int(receipt[f"{name}_tokens"]) for name in ("kept", "moved", "computed"))
    return Completion(kept, moved, computed, branch=branch)


def _of_usage(usage: Mapping[str, Any]) -> Completion:
    prompt = int(usage.get("prompt_tokens") or 0)
    cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    return Completion(min(cached, prompt), 0, prompt - min(cached, prompt))
