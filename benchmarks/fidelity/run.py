"""Serves the cases of `acmserve bench fidelity` in every way and measures how far each is from exact.

    turn 0    context                read once, then by a session of every way that moves KV
    turn 1    edited prompt          each way: one request along the true continuation (its logits are kept), and one
                                     that answers greedily
    turn 2    the next edit, ...

All requests of a case share a cache salt, so the context is prefilled once; the sessions share no moved KV, since a
lineage belongs to one session. What is read exactly in a salt where moves happen is compared, in the first case of each
kind, with the same prompt in a salt of its own: KV that leaked from a move would show there.

Failures are collected, not raised, so that a report names all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch

from acmserve.bench.fidelity.cases import CHAIN, RESTORE, Case, CaseTurn
from acmserve.bench.fidelity.score import Distance, distance, divergence, text_features
from acmserve.bench.fidelity.variants import AGAIN, EXACT, NUM_GREEDY, Variant
from acmserve.bench.harness.engine import Ask, EngineReply, LocalEngine
from acmserve.bench.models.forced_model import take
from acmserve.engine.worker.copies import KVCopy
from acmserve.engine.worker.kv_mover import KVMover
from acmserve.plan.auto import grain_of, measure
from acmserve.plan.planner import plan_edit
from acmserve.plan.source import ServedSequence

MAX_LOGIT_DIFFERENCE = 1e-4
MAX_SAME_KL = 1e-6
MIN_MOVED_SHARE = 0.9


@dataclass
class FidelityOutcome:
    """Records of measured turns, JSON-ready; what turned the gate red; the largest difference of exact logits."""

    records: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    exact_difference: float = 0.0
    refusal: str | None = None


def run_case(
    engine: LocalEngine,
    case: Case,
    variants: Sequence[Variant],
    outcome: FidelityOutcome,
    *,
    twice: bool,
    with_answers: bool,
) -> None:
    """Serve every turn of a case.

    With `twice` the exact distributions are computed a second time; `with_answers` asks for greedy answers, too.
    """
    salt = f"fidelity {case.name}"
    engine.ask(Ask(case.turns[0].prompt, salt))
    movers = [variant for variant in variants if variant.moves and variant.fits(case, case.turns[-1])]
    for turn in case.turns:
        if not turn.continuation:
            for turned in (True, False):
                group = [_ask(case, v, turn.prompt) for v in movers if v.turns_keys is turned]
                if group:
                    with _keys(turned):
                        engine.ask_all(group)
            continue
        wanted = [variant for variant in variants if variant.fits(case, turn)]
        if twice and case.kind != RESTORE:
            wanted.append(Variant(AGAIN))
        # A chain goes on from here: an answer of its own would become the conversation that the next edit is made to.
        greedy = with_answers and turn is case.turns[-1]
        _Measurement(engine, case, turn, wanted, outcome, greedy=greedy).run()


class _Measurement:
    """One turn of a case, in every way."""

    def __init__(
        self,
        engine: LocalEngine,
        case: Case,
        turn: CaseTurn,
        variants: Sequence[Variant],
        outcome: FidelityOutcome,
        *,
        greedy: bool,
    ) -> None:
        self._engine, self._case, self._turn = engine, case, turn
        self._variants, self._outcome = variants, outcome
        self._greedy = greedy
        self._forced: dict[str, EngineReply] = {}
        self._free: dict[str, EngineReply] = {}

    def run(self) -> None:
        """Ask, compare, record. What is asked later finds the exact prompt in the cache, and would not move."""
        for turned in (False, True):
            self._ask([variant for variant in self._variants if variant.turns_keys is turned], turned)
        exact = take(self._id(EXACT))
        compared = {v.name: distance(exact, take(self._id(v.name))) for v in self._variants if v.name != EXACT}
        for variant in self._variants:
            self._check(variant, compared.get(variant.name))
        self._outcome.records.append(self._record(exact, compared))

    def _ask(self, variants: Sequence[Variant], turned: bool) -> None:
        asks: list[Ask] = []
        for variant in variants:
            prompt = getattr(self._turn, variant.prompt)
            script = {"forced_id": self._id(variant.name), "forced": list(self._turn.continuation)}
            asks.append(_ask(self._case, variant, prompt, len(self._turn.continuation), script))
            if self._greedy and variant.answers:
                asks.append(_ask(self._case, variant, prompt, NUM_GREEDY))
        if asks:
            with _keys(turned):
                replies = iter(self._engine.ask_all(asks))
            for variant in variants:
                self._forced[variant.name] = next(replies)
                if self._greedy and variant.answers:
                    self._free[variant.name] = next(replies)

    def _id(self, name: str) -> str:
        return f"{self._case.name} {self._turn.num_edits} {name}"

    def _check(self, variant: Variant, found: Distance | None) -> None:
        turn, receipt = self._turn, self._forced[variant.name].receipt
        where, failures = self._id(variant.name), self._outcome.failures
        if receipt is None:
            failures.append(f"{where}: no receipt came back")
            return
        counts = tuple(receipt[key] for key in ("kept_tokens", "moved_tokens", "computed_tokens"))
        prompt = getattr(turn, variant.prompt)
        if sum(counts) != len(prompt):
            failures.append(f"{where}: kept, moved, computed {counts} do not sum to {len(prompt)}")
        if self._forced[variant.name].token_ids != turn.continuation:
            failures.append(f"{where}: the answer is not the given continuation")
        if not variant.moves and counts[1]:
            failures.append(f"{where}: {counts[1]} tokens were moved under exact")
        refused = variant.moves and (receipt["fallback_reason"] or "").startswith(("model:", "kv cache:", "positions:"))
        if refused:
            self._outcome.refusal = receipt["fallback_reason"]
        least = MIN_MOVED_SHARE * turn.num_movable
        if variant.must_move and not refused and counts[1] < least:
            failures.append(f"{where}: moved {counts[1]} of {turn.num_movable} tokens ({receipt['fallback_reason']})")
        if found is None:
            return
        if variant.name == AGAIN:
            self._outcome.exact_difference = max(self._outcome.exact_difference, found.max_logit_difference)
            if found.max_logit_difference > MAX_LOGIT_DIFFERENCE:
                failures.append(f"{where}: logits differ by {found.max_logit_difference:.1e} from the first time")
        chosen_exact = receipt.get("chosen") == "exact" and self._case.kind != CHAIN
        same = variant.name == AGAIN or chosen_exact or (variant.moves and (refused or self._case.kind == RESTORE))
        if same and (found.mean_kl > MAX_SAME_KL or counts[1]):
            failures.append(f"{where}: KL {found.mean_kl:.1e} and {counts[1]} moved tokens where it has to be exact")

    def _record(self, exact: torch.Tensor, compared: Mapping[str, Distance]) -> dict[str, Any]:
        turn, case = self._turn, self._case
        surprise = torch.nn.functional.cross_entropy(exact, torch.tensor(turn.continuation))
        return {
            "case": case.name,
            "document": case.document,
            "kind": case.kind,
            "dependence": case.dependence,
            "num_edits": turn.num_edits,
            "prompt_tokens": len(turn.prompt),
            "prefix_tokens": turn.num_prefix,
            "folded_tokens": turn.num_folded,
            "suffix_tokens": turn.num_suffix,
            "movable_tokens": turn.num_movable,
            "exact_nll": round(float(surprise), 5),
            "features": self._features(),
            "variants": {name: self._row(name, found) for name, found in compared.items()},
        }

    def _features(self) -> dict[str, float]:
        """What is known of the edit for free, and what `auto` goes by: the plan against the turn before."""
        turn, before = self._turn, self._case.turns[self._case.turns.index(self._turn) - 1]
        prompt, served = (np.asarray(tokens, dtype=np.int32) for tokens in (turn.prompt, before.prompt))
        sources = [ServedSequence(served, 1, ())]
        known = measure(
            plan_edit(prompt, sources, allow_moves=True, min_move_tokens=grain_of().piece_tokens), prompt, sources
        ).features
        return text_features(turn.num_prefix, turn.folded, turn.suffix) | {
            **asdict(known),
            "echoed_share": known.echoed_share,
            "anew_share": known.anew_share,
            "listed_share": known.listed_share,
        }

    def _row(self, name: str, found: Distance) -> dict[str, Any]:
        receipt = self._forced[name].receipt or {}
        row: dict[str, Any] = {"kl": round(found.mean_kl, 7), "kl_bins": found.bins(), "top1": round(found.top1, 5)}
        if name in self._free:
            expected, given = self._free[EXACT].token_ids, self._free[name].token_ids
            row["divergence"] = divergence(expected, given)
            row["greedy_same"] = row["divergence"] is None
        moves = [(move["dst_start"], move["src_start"], move["num_tokens"]) for move in receipt.get("moves", ())]
        return row | {
            "moved_tokens": receipt.get("moved_tokens"),
            "computed_tokens": receipt.get("computed_tokens"),
            "deltas": [dst - src for dst, src, _ in moves],
            "fallback_reason": receipt.get("fallback_reason"),
            "chosen": receipt.get("chosen"),
        }


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


@contextmanager
def _keys(turned: bool) -> Iterator[None]:
    """Without `turned` keys are copied as they lie there, for the positions that they had: the reference that is wrong.

    The engine has no such switch, nor should it; so its worker is handed copies that claim to go nowhere.
    """
    if turned:
        yield
        return
    carry_out = KVMover.carry_out

    def without_turning(mover: KVMover, copies: Sequence[KVCopy]) -> None:
        carry_out(mover, [_InPlace(**asdict(copy)) for copy in copies])

    with mock.patch.object(KVMover, "carry_out", without_turning):
        yield


class _InPlace(KVCopy):
    """A copy that does not turn keys, whatever lies between its positions."""

    @property
    def delta(self) -> int:
        return 0
