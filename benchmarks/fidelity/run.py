"""Serves the cases of `acmserve bench fidelity` in every way and measures how far each is from exact.

    turn 0    context                read once, then by a session of every way that moves KV
    turn 1    edited prompt          each way: one request along the true continuation, whose logits are kept
    turn 2    the next edit, ...

All requests of a case share a cache salt, so the context is prefilled once. The sessions share no moved KV, since a
lineage belongs to one session. What is read exactly in a salt where moves happen is checked in the first case of each
kind. The check compares it with the same prompt in a salt of its own: KV that leaked from a move would show there.

Failures are collected, not raised, so that a report names all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from acmserve.bench.fidelity.cases import RESTORE, Case, CaseTurn
from acmserve.bench.fidelity.score import Distance, distance
from acmserve.bench.fidelity.variants import AGAIN, EXACT, REUSE, VARIANTS, Variant
from acmserve.bench.harness.engine import Ask, EngineReply, LocalEngine, check_receipt
from acmserve.bench.models.forced_model import take

MAX_LOGIT_DIFFERENCE = 1e-4
MAX_SAME_KL = 1e-6
MIN_MOVED_SHARE = 0.9


@dataclass
class FidelityOutcome:
    """JSON-ready records of measured turns, what turned the gate red, and the largest difference of exact logits."""

    records: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    exact_difference: float = 0.0


def run_case(engine: LocalEngine, case: Case, outcome: FidelityOutcome, *, twice: bool) -> None:
    """Serve every turn of a case. With `twice` the exact distributions are computed a second time."""
    engine.ask(Ask(case.turns[0].prompt, f"fidelity {case.name}"))
    movers = [variant for variant in VARIANTS if variant.moves and variant.fits(case, case.turns[-1])]
    for turn in case.turns:
        if not turn.continuation:
            engine.ask_all([_ask(case, variant, turn.prompt) for variant in movers])
            continue
        wanted = [variant for variant in VARIANTS if variant.fits(case, turn)]
        if twice and case.kind != RESTORE:
            wanted.append(Variant(AGAIN))
        _measure(engine, case, turn, wanted, outcome)


def _measure(
    engine: LocalEngine, case: Case, turn: CaseTurn, variants: list[Variant], outcome: FidelityOutcome
) -> None:
    """One turn of a case, in every way: ask, compare, check, record."""
    asks = [_led(case, turn, variant) for variant in variants]
    replies = {one.name: reply for one, reply in zip(variants, engine.ask_all(asks), strict=True)}
    exact = take(_id(case, EXACT))
    compared = {one.name: distance(exact, take(_id(case, one.name))) for one in variants if one.name != EXACT}
    for variant, ask in zip(variants, asks, strict=True):
        reply, found = replies[variant.name], compared.get(variant.name)
        failures = check_served(turn, variant, ask, reply)
        if found is not None:
            failures += check_same(case, variant, reply, found)
        if found is not None and variant.name == AGAIN:
            outcome.exact_difference = max(outcome.exact_difference, found.max_logit_difference)
        outcome.failures += [f"{_id(case, variant.name)}: {what}" for what in failures]
    rows = {name: _row(replies[name], found) for name, found in compared.items()}
    outcome.records.append(_record(case, turn, exact, rows))


def check_served(turn: CaseTurn, variant: Variant, ask: Ask, reply: EngineReply) -> list[str]:
    """Why a receipt or an answer is not what the request asked for."""
    failures = check_receipt(ask, reply.receipt)
    if reply.token_ids != turn.continuation:
        failures.append("the answer is not the given continuation")
    receipt = reply.receipt or {}
    moved, reason = receipt.get("moved_tokens", 0), receipt.get("fallback_reason")
    if variant.name == REUSE and moved < MIN_MOVED_SHARE * turn.num_movable:
        failures.append(f"moved {moved} of {turn.num_movable} tokens ({reason})")
    return failures


def check_same(case: Case, variant: Variant, reply: EngineReply, found: Distance) -> list[str]:
    """Why a distribution that has to be the exact one is not."""
    failures = []
    if variant.name == AGAIN and found.max_logit_difference > MAX_LOGIT_DIFFERENCE:
        failures.append(f"logits differ by {found.max_logit_difference:.1e} from the first time")
    receipt = reply.receipt or {}
    chosen_exact = receipt.get("chosen") == "exact"
    same = variant.name == AGAIN or chosen_exact or (variant.moves and case.kind == RESTORE)
    num_moved = receipt.get("moved_tokens", 0)
    if same and (found.mean_kl > MAX_SAME_KL or num_moved):
        failures.append(f"KL {found.mean_kl:.1e} and {num_moved} moved tokens where it has to be exact")
    return failures


def _record(case: Case, turn: CaseTurn, exact: torch.Tensor, rows: Mapping[str, Any]) -> dict[str, Any]:
    surprise = torch.nn.functional.cross_entropy(exact, torch.tensor(turn.continuation))
    return {
        "case": case.name,
        "document": case.document,
        "kind": case.kind,
        "dependence": case.dependence,
        "prompt_tokens": len(turn.prompt),
        "movable_tokens": turn.num_movable,
        "exact_nll": round(float(surprise), 5),
        "variants": dict(rows),
    }


def _row(reply: EngineReply, found: Distance) -> dict[str, Any]:
    names = ("moved_tokens", "computed_tokens", "fallback_reason", "chosen")
    told = {name: (reply.receipt or {}).get(name) for name in names}
    return {"kl": round(found.mean_kl, 7), "top1": round(found.top1, 5), **told}


def _id(case: Case, name: str) -> str:
    return f"{case.name} {name}"


def _led(case: Case, turn: CaseTurn, variant: Variant) -> Ask:
    """Along the true continuation."""
    script = {"forced_id": _id(case, variant.name), "forced": list(turn.continuation)}
    ask = _ask(case, variant, getattr(turn, variant.prompt))
    return replace(ask, max_tokens=len(turn.continuation), extra_args=script)


def _ask(case: Case, variant: Variant, prompt: tuple[int, ...]) -> Ask:
    """In the salt of the case, except where the point is that nothing else is in the cache."""
    alone = variant.name == AGAIN or (case.kind == RESTORE and not variant.moves)
    return Ask(
        prompt,
        salt=f"fidelity {case.name}" + (" alone" if alone else ""),
        session_id=f"{case.name} {variant.name}"[-200:],
        fidelity=variant.fidelity,
        acm={} if variant.repair is None else {"repair": variant.repair},
        ignore_eos=True,
    )
