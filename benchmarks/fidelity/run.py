"""Serves the cases of `acmserve bench fidelity` in every way and measures how far each is from exact.

    turn 0    context                read once, then by a session of every way that moves KV
    turn 1    edited prompt          each way: one request along the true continuation, whose logits are kept
    turn 2    the next edit, ...

All requests of a case share a cache salt, so the context is prefilled once; the sessions share no moved KV, since a
lineage belongs to one session. What is read exactly in a salt where moves happen is compared, in the first case of each
kind, with the same prompt in a salt of its own: KV that leaked from a move would show there.

Failures are collected, not raised, so that a report names all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from acmserve.bench.fidelity.cases import RESTORE, Case, CaseTurn
from acmserve.bench.fidelity.score import Distance, distance
from acmserve.bench.fidelity.variants import AGAIN, EXACT, REUSE, VARIANTS, Variant
from acmserve.bench.harness.engine import Ask, EngineReply, LocalEngine
from acmserve.bench.models.forced_model import take

MAX_LOGIT_DIFFERENCE = 1e-4
MAX_SAME_KL = 1e-6
MIN_MOVED_SHARE = 0.9


@dataclass
class FidelityOutcome:
    """Records of measured turns, JSON-ready; what turned the gate red; the largest difference of exact logits."""

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
    asks = [
        _ask(case, one, getattr(turn, one.prompt), len(turn.continuation), _script(case, one, turn)) for one in variants
    ]
    replies = dict(zip([variant.name for variant in variants], engine.ask_all(asks), strict=True))
    exact = take(_id(case, EXACT))
    compared = {one.name: distance(exact, take(_id(case, one.name))) for one in variants if one.name != EXACT}
    for variant in variants:
        reply, found = replies[variant.name], compared.get(variant.name)
        outcome.failures += [f"{_id(case, variant.name)}: {what}" for what in check_served(case, turn, variant, reply)]
        if found is not None:
            outcome.failures += [
                f"{_id(case, variant.name)}: {what}" for what in check_same(case, variant, reply, found)
            ]
        if variant.name == AGAIN and found is not None:
            outcome.exact_difference = max(outcome.exact_difference, found.max_logit_difference)
    outcome.records.append(
        _record(case, turn, exact, {name: (replies[name], found) for name, found in compared.items()})
    )


def check_served(turn: CaseTurn, variant: Variant, reply: EngineReply) -> list[str]:
    """Why a receipt or an answer is not what the request asked for."""
    if (receipt := reply.receipt) is None:
        return ["no receipt came back"]
    failures = []
    counts = tuple(receipt[key] for key in ("kept_tokens", "moved_tokens", "computed_tokens"))
    prompt = getattr(turn, variant.prompt)
    if sum(counts) != len(prompt):
        failures.append(f"kept, moved, computed {counts} do not sum to {len(prompt)}")
    if reply.token_ids != turn.continuation:
        failures.append("the answer is not the given continuation")
    if not variant.moves and counts[1]:
        failures.append(f"{counts[1]} tokens were moved under exact")
    if variant.name == REUSE and counts[1] < MIN_MOVED_SHARE * turn.num_movable:
        failures.append(f"moved {counts[1]} of {turn.num_movable} tokens ({receipt['fallback_reason']})")
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


def _script(case: Case, variant: Variant, turn: CaseTurn) -> dict[str, Any]:
    return {"forced_id": _id(case, variant.name), "forced": list(turn.continuation)}


def _ask(
    case: Case, variant: Variant, prompt: tuple[int, ...], max_tokens: int = 1, script: Mapping[str, Any] | None = None
) -> Ask:
    """In the salt of the case, except where the point is that nothing else is in the cache."""
    alone = variant.name == AGAIN or (case.kind == RESTORE and not variant.moves)
    return Ask(
        prompt,
        salt=f"fidelity {case.name}" + (" alone" if alone else ""),
        session_id=f"{case.name} {variant.name}"[-200:],
        fidelity=variant.fidelity,
        max_tokens=max_tokens,
        acm={} if variant.repair is None else {"repair": variant.repair},
        extra_args=script or {},
        ignore_eos=True,
    )
