"""What replays come to: rates, times to first token, tokens; and the gate in front of them. Pure.

    cell = server x policy x concurrency, its repetitions pooled

A number stands only where every server answered every turn, a server of ours or vLLM's read the very number of tokens
that the client made, no prompt exceeds the budget, receipts add up, and `exact` sampled the tokens that stock sampled.
Servers of others may write a token more or less around a prompt; that is told, not judged.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from acmserve.bench.agent.ideal_prefix_cache import PrefixCache
from acmserve.bench.harness.peer_servers import EXACT, OURS, STOCK, Peer
from acmserve.bench.trace.load import Load, Replay, Session, Turn

_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Cell:
    """All repetitions of one policy at one concurrency on one server."""

    peer: Peer
    policy: str
    concurrency: int
    loads: tuple[Load, ...]

    @property
    def title(self) -> str:
        """For messages."""
        return f"{self.peer.name}, {self.policy}, {self.concurrency} at a time"

    @property
    def turns(self) -> list[tuple[Replay, Turn]]:
        """Every counted turn with its session, all repetitions."""
        return [(replay, turn) for load in self.loads for replay in load.replays for turn in replay.turns]


def check_cell(cell: Cell, budget: int) -> list[str]:
    """Why the numbers of a cell may not be told, by itself."""
    failures = []
    for number, load in enumerate(cell.loads):
        for replay in load.replays:
            where = f"{cell.title}, repetition {number}, {replay.session.name}"
            wanted = len(replay.session.prompts) - 1
            if replay.failure or len(replay.turns) != wanted:
                failures.append(
                    f"{where}: {len(replay.turns)} of {wanted} turns were answered. {replay.failure}".strip()
                )
            for turn in replay.turns:
                failures += [f"{where}, turn {turn.number}: {what}" for what in _check_turn(cell, replay, turn, budget)]
    return failures


def _check_turn(cell: Cell, replay: Replay, turn: Turn, budget: int) -> list[str]:
    failures = []
    made = len(replay.session.prompts[turn.number].tokens)
    if cell.peer.is_vllm and turn.prompt_tokens != made:
        failures.append(f"the server read {turn.prompt_tokens} tokens, the client made {made}")
    if cell.policy != "none" and turn.prompt_tokens > budget and not cell.peer.is_url:
        failures.append(f"{turn.prompt_tokens} tokens, the budget is {budget}")
    counts = (turn.cached.kept, turn.cached.moved, turn.cached.computed)
    if cell.peer.name in OURS and (None in counts or sum(count or 0 for count in counts) != turn.prompt_tokens):
        failures.append(f"the receipt {counts} does not add up to {turn.prompt_tokens}")
    if cell.peer.name == EXACT and turn.cached.moved:
        failures.append(f"{turn.cached.moved} tokens were moved under exact")
    return failures


def check_exact(cells: Sequence[Cell]) -> list[str]:
    """Where `exact` and the stock engine did not sample the same tokens."""
    by_name = {(cell.peer.name, cell.policy, cell.concurrency): cell for cell in cells}
    failures = []
    for cell in cells:
        stock = by_name.get((STOCK, cell.policy, cell.concurrency))
        if cell.peer.name != EXACT or stock is None:
            continue
        for (replay, turn), (_, other) in zip(cell.turns, stock.turns, strict=False):
            if turn.answer != other.answer:
                what = f"exact sampled {turn.answer}, stock {other.answer}"
                failures.append(f"{cell.title}, {replay.session.name}, turn {turn.number}: {what}")
    return failures


def notes(cells: Iterable[Cell]) -> list[str]:
    """What is told and not judged: servers that write prompts otherwise."""
    said = []
    for cell in cells:
        beside = {turn.prompt_tokens - len(replay.session.prompts[turn.number].tokens) for replay, turn in cell.turns}
        if not cell.peer.is_vllm and beside - {0}:
            said.append(
                f"{cell.title}: prompts have {min(beside):+d} to {max(beside):+d} tokens beside the client's count"
            )
    return said


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """p50, p90, p99 by the nearest rank, and how many values; None without any."""
    if not values:
        return None
    ordered = sorted(values)
    told = {f"p{p}": round(ordered[max(1, math.ceil(p / 100 * len(ordered))) - 1], 4) for p in _PERCENTILES}
    return told | {"num": len(ordered)}


def best_computed(sessions: Iterable[Session]) -> int:
    """Tokens that an infinite cache computes for the counted turns of these sessions, which have read the openings."""
    total = 0
    for session in sessions:
        cache = PrefixCache()
        computed = [cache.computed(prompt.tokens) for prompt in session.prompts]
        total += sum(computed[1:])
    return total


def as_row(cell: Cell) -> dict[str, Any]:
    """JSON-ready. Tokens are those of one repetition's turns, without asides; None where a server does not tell."""
    first = [replay for load in cell.loads[:1] for replay in load.replays]
    turns = [turn for replay in first for turn in replay.turns]
    prompts = sum(turn.prompt_tokens for turn in turns)
    computed = _sum(turn.cached.computed for turn in turns)
    edited = [turn.first_seconds for replay, turn in cell.turns if replay.session.prompts[turn.number].is_edited]
    rates = [sum(len(replay.turns) for replay in load.replays) / load.seconds for load in cell.loads]
    served = [sum(turn.prompt_tokens for r in load.replays for turn in r.turns) / load.seconds for load in cell.loads]
    return {
        "server": cell.peer.name,
        "title": cell.peer.title,
        "policy": cell.policy,
        "concurrency": cell.concurrency,
        "num_turns": len(turns),
        "num_edits": sum(r.session.prompts[turn.number].is_edited for r in first for turn in r.turns),
        "num_forced": sum(r.session.prompts[turn.number].is_forced for r in first for turn in r.turns),
        "turns_per_second": _spread(rates),
        "prompt_tokens_per_second": _spread(served),
        "first_token_seconds": percentiles([turn.first_seconds for _, turn in cell.turns]),
        "first_token_seconds_after_edit": percentiles(edited),
        "prompt_tokens": prompts,
        "kept_tokens": _sum(turn.cached.kept for turn in turns),
        "moved_tokens": _sum(turn.cached.moved for turn in turns),
        "computed_tokens": computed,
        "hit_rate": None if computed is None or not prompts else round(1 - computed / prompts, 4),
        "aside_tokens": sum(turn.aside_tokens for turn in turns),
        "best_computed_tokens": best_computed(replay.session for replay in first),
        "turns": [_turns(replay) for replay in first],
    }


def _turns(replay: Replay) -> dict[str, Any]:
    return {
        "session": replay.session.name,
        "prompt_tokens": [turn.prompt_tokens for turn in replay.turns],
        "computed_tokens": [turn.cached.computed for turn in replay.turns],
        "is_edited": [int(replay.session.prompts[turn.number].is_edited) for turn in replay.turns],
        "first_token_seconds": [round(turn.first_seconds, 4) for turn in replay.turns],
    }


def _sum(counts: Iterable[int | None]) -> int | None:
    """None where one count is not known."""
    told = list(counts)
    return None if None in told else sum(count for count in told if count is not None)


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
    }
