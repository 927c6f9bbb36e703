"""What replays come to: rates, times to first token, tokens. And the gate in front of them. Pure.

    cell = server x policy, its repetitions pooled

A number stands only where every server answered every turn, no prompt exceeds the budget and receipts add up. A server
of ours or vLLM's has to read the very number of tokens that the client made, and `exact` has to sample stock's tokens.
Where `exact` and stock do not both run, a note says that nothing was compared. Servers of others may write a token more
or less around a prompt. A note says so.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from acmserve.bench.agent.estimates import bootstrap_interval, nearest_rank, repeated_ratio_interval
from acmserve.bench.harness.engine import EngineReply
from acmserve.bench.provenance.measured import LEAST_REPETITIONS
from acmserve.bench.trace.load import AnsweredTurn, Load, SessionReplay
from acmserve.bench.trace.peer_servers import EXACT, OURS, STOCK, Peer
from acmserve.bench.trace.repeats import add_up

PERCENTILES = (50, 90, 99)
GOODPUT_LIMITS = (1.0, 2.0, 5.0)
"""Seconds to the first token that a user may accept."""
_TIMES = frozenset(
    {
        *("turns_per_second", "first_token_seconds", "first_token_seconds_after_edit", "turn_seconds"),
        *("waited_seconds", "waited_beside_stock", "edited_beside_stock", "rate_beside_stock", "goodput"),
    }
)
_NUM_SAMPLES = 2_000
NOT_COMPARED = "exact and stock did not both run: no sampled token was compared"


@dataclass(frozen=True, slots=True)
class ReplayCell:
    """All repetitions of one policy on one server. `witnesses`: last prompts once more (`witness.py`).

    `fresh` are answers of stock to those prompts from no KV at all, in 16 bits (`half_precision.py`).
    """

    peer: Peer
    policy: str
    loads: tuple[Load, ...]
    witnesses: tuple[EngineReply, ...] = ()
    fresh: tuple[EngineReply, ...] = ()

    @property
    def title(self) -> str:
        """For messages."""
        return f"{self.peer.name}, {self.policy}"

    @property
    def replays(self) -> list[SessionReplay]:
        """Every session, all repetitions."""
        return [replay for load in self.loads for replay in load.replays]

    @property
    def turns(self) -> list[tuple[SessionReplay, AnsweredTurn]]:
        """Every counted turn with its session, all repetitions."""
        return [(replay, turn) for replay in self.replays for turn in replay.turns]


def check_cell(cell: ReplayCell) -> list[str]:
    """Why the numbers of a cell may not be reported, by itself."""
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
                failures += [f"{where}, turn {turn.number}: {what}" for what in _check_turn(cell, replay, turn)]
    return failures


def _check_turn(cell: ReplayCell, replay: SessionReplay, turn: AnsweredTurn) -> list[str]:
    failures = []
    budget = replay.session.max_tokens
    made = len(replay.session.prompts[turn.number].tokens)
    if cell.peer.is_vllm and turn.prompt_tokens != made:
        failures.append(f"the server read {turn.prompt_tokens} tokens, the client made {made}")
    if budget and turn.prompt_tokens > budget and not cell.peer.is_url:
        failures.append(f"{turn.prompt_tokens} tokens, the budget is {budget}")
    counts = (turn.cached.kept, turn.cached.moved, turn.cached.computed)
    if cell.peer.name in OURS and (None in counts or sum(count or 0 for count in counts) != turn.prompt_tokens):
        failures.append(f"the receipt {counts} does not add up to {turn.prompt_tokens}")
    if cell.peer.name == EXACT and turn.cached.moved:
        failures.append(f"{turn.cached.moved} tokens were moved under exact")
    return failures


def compare_with_stock(cells: Sequence[ReplayCell]) -> tuple[int, list[str]]:
    """How many answers of `exact` were compared with those of the stock engine, and where they differ."""
    by_name = {(cell.peer.name, cell.policy): cell for cell in cells}
    failures, num_compared = [], 0
    for cell in cells:
        stock = by_name.get((STOCK, cell.policy))
        if cell.peer.name != EXACT or stock is None:
            continue
        for (replay, turn), (_, other) in zip(cell.turns, stock.turns, strict=False):
            num_compared += 1
            if turn.answer != other.answer:
                what = f"exact sampled {turn.answer}, stock {other.answer}"
                failures.append(f"{cell.title}, {replay.session.name}, turn {turn.number}: {what}")
    return num_compared, failures


def prompt_notes(cells: Iterable[ReplayCell]) -> list[str]:
    """Servers that write prompts otherwise."""
    found = []
    for cell in cells:
        extra = {turn.prompt_tokens - len(replay.session.prompts[turn.number].tokens) for replay, turn in cell.turns}
        if not cell.peer.is_vllm and extra - {0}:
            found.append(
                f"{cell.title}: prompts have {min(extra):+d} to {max(extra):+d} tokens more than the client made"
            )
    return found


def percentiles(repetitions: Sequence[Sequence[float]]) -> dict[str, Any] | None:
    """p50, p90, p99 by the nearest rank, how many values, and the 95 % interval of each percentile. None without any.

    Intervals are a bootstrap of repetitions. These replay the same prompts, so an interval covers the machine and not
    the workload. Sessions of one repetition share a queue, and are no values of their own. Of fewer than five
    repetitions there is no interval.
    """
    groups = [group for group in repetitions if group]
    if not groups:
        return None
    found: dict[str, Any] = {f"p{p}": round(_percentile(groups, p), 4) for p in PERCENTILES}
    found["num"] = sum(map(len, groups))
    if len(groups) >= LEAST_REPETITIONS:
        found["intervals"] = {
            f"p{p}": bootstrap_interval(groups, partial(_percentile, percent=p), _NUM_SAMPLES) for p in PERCENTILES
        }
    return found


def _percentile(groups: Sequence[Sequence[float]], percent: int) -> float:
    return nearest_rank(sorted(chain.from_iterable(groups)), percent / 100)


def turns_of(load: Load) -> list[AnsweredTurn]:
    """All counted turns of one replay."""
    return [turn for replay in load.replays for turn in replay.turns]


def rate_of(load: Load) -> float:
    """Turns a second."""
    return len(turns_of(load)) / load.seconds


def goodput(load: Load, limit: float) -> float:
    """Turns a second whose first token came within `limit` seconds."""
    return round(sum(turn.first_seconds <= limit for turn in turns_of(load)) / load.seconds, 4)


def as_row(cell: ReplayCell, stock: ReplayCell | None = None) -> dict[str, Any]:
    """JSON-ready. Tokens are those of one repetition's turns. None where a server does not tell.

    `fallbacks` are the reasons why less was moved than could be, with the number of turns of each.
    `waited_seconds` are all times to the first token of one repetition, added up: those of ordinary turns, too.
    """
    first = cell.loads[0].replays
    turns = [turn for replay in first for turn in replay.turns]
    prompts = [replay.session.prompts[turn.number] for replay in first for turn in replay.turns]
    num_prompt = sum(turn.prompt_tokens for turn in turns)
    computed = _sum(turn.cached.computed for turn in turns)
    rates = [rate_of(load) for load in cell.loads]
    return {
        "server": cell.peer.name,
        "title": cell.peer.title,
        "policy": cell.policy,
        "num_sessions": len(first),
        "num_turns": len(turns),
        "num_edits": sum(prompt.is_edited for prompt in prompts),
        "num_forced": sum(prompt.is_forced for prompt in prompts),
        "turns_per_second": {"median": round(statistics.median(rates), 4), "min": min(rates), "max": max(rates)},
        "rate_beside_stock": rate_beside(cell, stock),
        "first_token_seconds": percentiles([[turn.first_seconds for turn in turns_of(load)] for load in cell.loads]),
        "first_token_seconds_after_edit": percentiles([load.edited_seconds for load in cell.loads]),
        "turn_seconds": percentiles([[turn.seconds for turn in turns_of(load)] for load in cell.loads]),
        "waited_seconds": [round(sum(turn.first_seconds for turn in turns_of(load)), 3) for load in cell.loads],
        "waited_beside_stock": waited_beside(cell, stock),
        "edited_beside_stock": waited_beside(cell, stock, only_edited=True),
        "goodput": {
            f"{limit:g}": statistics.median(goodput(load, limit) for load in cell.loads) for limit in GOODPUT_LIMITS
        },
        "prompt_tokens": num_prompt,
        "kept_tokens": _sum(turn.cached.kept for turn in turns),
        "moved_tokens": _sum(turn.cached.moved for turn in turns),
        "computed_tokens": computed,
        "fallbacks": dict(sorted(Counter(turn.cached.fallback for turn in turns if turn.cached.fallback).items())),
        "hit_rate": None if computed is None or not num_prompt else round(1 - computed / num_prompt, 4),
        "turns": [
            {
                "session": replay.session.name,
                "max_tokens": replay.session.max_tokens,
                **add_up([prompt.repeats for prompt in replay.session.prompts]),
                "prompt_tokens": [turn.prompt_tokens for turn in replay.turns],
                "computed_tokens": [turn.cached.computed for turn in replay.turns],
                "is_edited": [int(replay.is_edited(turn)) for turn in replay.turns],
                "first_token_seconds": [round(turn.first_seconds, 4) for turn in replay.turns],
            }
            for replay in first
        ],
    }


def waited_beside(cell: ReplayCell, stock: ReplayCell | None, *, only_edited: bool = False) -> dict[str, Any] | None:
    """All waiting for first tokens over that on the stock engine, with its interval. None without such an engine.

    The interval is over repetitions, since turns of one share a queue, and Student's, since they are few. It covers the
    machine and not the workload, which is the same in all. One alone stands for both ends. `only_edited`: of turns
    behind an edit alone, None without any.
    """
    if stock is None:
        return None
    pairs = [
        (_waited(own, only_edited=only_edited), _waited(other, only_edited=only_edited))
        for own, other in zip(cell.loads, stock.loads, strict=True)
    ]
    if not all(other for _, other in pairs):
        return None
    ratio = math.fsum(own for own, _ in pairs) / math.fsum(other for _, other in pairs)
    ends = repeated_ratio_interval([own / other for own, other in pairs])
    return {"ratio": round(ratio, 4), "interval": [round(end, 4) for end in ends]}


def _waited(load: Load, *, only_edited: bool) -> float:
    """Seconds to first tokens, added up."""
    turns = [(replay, turn) for replay in load.replays for turn in replay.turns]
    return sum(turn.first_seconds for replay, turn in turns if replay.is_edited(turn) or not only_edited)


def rate_beside(cell: ReplayCell, stock: ReplayCell | None) -> dict[str, Any] | None:
    """Turns a second over those of the stock engine: the geometric mean over repetitions, each with its pair.

    The interval is Student's over repetitions, as that of `waited_beside`. These replay the same prompts, so it covers
    the machine and not the workload.
    """
    if stock is None:
        return None
    ratios = [rate_of(own) / rate_of(other) for own, other in zip(cell.loads, stock.loads, strict=True)]
    ends = repeated_ratio_interval(ratios)
    return {"ratio": round(statistics.geometric_mean(ratios), 4), "interval": [round(end, 4) for end in ends]}


def without_times(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a model whose times say nothing."""
    counts = {name: value for name, value in row.items() if name not in _TIMES}
    return counts | {"turns": [{k: v for k, v in turns.items() if k not in _TIMES} for turns in row["turns"]]}


def _sum(counts: Iterable[int | None]) -> int | None:
    """None where one count is not known."""
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)
