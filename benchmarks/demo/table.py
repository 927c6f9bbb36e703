"""What the turns of the demo cost, as rows for a terminal, as JSON, and as one sentence.

Pure: numbers in, text out. The sentence claims a gain only when KV was really moved.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

_ANSWER_WIDTH = 52
_HEADER = f"  {'':<13}{'kept':>7}{'moved':>8}{'computed':>10}{'first token':>13}   answer"


@dataclass(frozen=True, slots=True)
class Cost:
    """One prompt in one sequence. Kept + moved + computed = prompt tokens."""

    num_kept: int
    num_moved: int
    num_computed: int
    first_token_s: float
    answer: str
    fallback_reason: str | None = None


@dataclass(frozen=True, slots=True)
class TurnCosts:
    """One turn in every sequence. The keys of `costs` are reuse, exact, stock engine, plain append."""

    number: int
    name: str
    question: str
    num_prompt_tokens: int
    num_new_tokens: int
    costs: dict[str, Cost]


def as_rows(turn: TurnCosts) -> list[str]:
    """A heading and one row for each sequence."""
    rows = [
        f"turn {turn.number}, {turn.name}: {turn.num_prompt_tokens:,} prompt tokens, {turn.num_new_tokens:,} new",
        f'  user: "{textwrap.shorten(turn.question, 100, placeholder=" ...")}"',
        _HEADER,
    ]
    for name, cost in turn.costs.items():
        answer = textwrap.shorten(cost.answer, _ANSWER_WIDTH, placeholder=" ...")
        rows.append(
            f"  {name:<13}{cost.num_kept:>7,}{cost.num_moved:>8,}{cost.num_computed:>10,}"
            f"{cost.first_token_s:>11.2f} s   {answer}"
        )
        if cost.fallback_reason:
            rows.append(f"  {'':<13}(nothing was moved: {cost.fallback_reason})")
    return rows


def result_sentence(turns: list[TurnCosts]) -> str:
    """The main result: the turn of the fold under `reuse`, the stock engine, the plain append and `exact`."""
    fold = next(turn for turn in turns if turn.name == "fold")
    reuse, stock, append = (fold.costs[name] for name in ("reuse", "stock engine", "plain append"))
    if reuse.num_moved == 0:
        reason = reuse.fallback_reason or "no kept text was long enough"
        return f"After the fold nothing was moved ({reason}), so every column had to compute the text behind it."
    return (
        f"After the fold, reuse moved {reuse.num_moved:,} tokens and gave its first token in "
        f"{reuse.first_token_s:.2f} s: {stock.first_token_s / reuse.first_token_s:.1f} times sooner than the stock "
        f"engine ({stock.first_token_s:.2f} s), {reuse.first_token_s / append.first_token_s:.2f} times a plain append "
        f"({append.first_token_s:.2f} s); {_exact_clause(turns)}."
    )


def _exact_clause(turns: list[TurnCosts]) -> str:
    differing = [turn.number for turn in turns if turn.costs["exact"].answer != turn.costs["stock engine"].answer]
    if differing:
        numbers = ", ".join(map(str, differing))
        return f"exact answered otherwise than the stock engine in turn {numbers}, which is a defect"
    return "exact answered word for word like the stock engine in every turn"
