"""Speculative decoding with a drafter's layers on the real engine: they stand in the model's blocks and are moved, too.

A drafter drafts well as long as its KV is right (`drafter_models.py`). So the share of accepted drafts is the oracle of
its KV, and the answers, which no draft may change, are that of everything else. The suite starts an engine with an
EAGLE head, `make drafters` one with each kind.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from vllm.distributed.kv_transfer import get_kv_transfer_group

from tests.engine.test_oracle import HISTORY, MARKER, MAX_DIFFERENCE, NEW
from tests.support.engine.drafter_models import DRAFTERS
from tests.support.engine.edits import cut, insert, text
from tests.support.engine.engine import TINY_SETTINGS, Answer, Engine, start_engine

KINDS = DRAFTERS if os.environ.get("ACMSERVE_DRAFTERS") == "all" else ("eagle",)
LOOKS_AHEAD = {"eagle": 1, "mtp": 1, "draft_model": 0}
NUM_ANSWERED = 48
EDITS = {
    "fold": cut(HISTORY, 200, 520, MARKER),
    "deletion": cut(HISTORY, 200, 520),
    "insertion": insert(HISTORY, 333, text(70, "inserted")),
    "append": HISTORY,
}


class Drafts:
    """An engine with a drafter, and how many of its drafts were accepted."""

    def __init__(self, kind: str, engine: Engine, model: Path) -> None:
        self.kind, self.engine = kind, engine
        self._reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    def ask(self, tokens: Sequence[int], session: str, fidelity: str) -> tuple[Answer, float]:
        """The answer, and the share of the drafts of its steps that were accepted."""
        before = self._counts()
        answer = self.engine.ask(tokens, session, fidelity, max_tokens=NUM_ANSWERED)
        drafted, accepted = (now - then for now, then in zip(self._counts(), before, strict=True))
        return answer, accepted / drafted

    def _counts(self) -> tuple[float, float]:
        values = {metric.name: getattr(metric, "value", 0.0) for metric in self.engine.llm.get_metrics()}
        names = ("vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens")
        drafted, accepted = (float(values[name]) for name in names)
        return drafted, accepted

    def undrafted(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """What the model answers without speculative decoding, in another library."""
        with torch.inference_mode():
            prompt = torch.tensor([list(tokens)])
            found = self._reference.generate(
                prompt, max_new_tokens=NUM_ANSWERED, do_sample=False, eos_token_id=-1, pad_token_id=0
            )
        return tuple(found[0, prompt.shape[1] :].tolist())


@pytest.fixture(scope="module", params=KINDS)
def drafts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drafts]:
    model, speculative = DRAFTERS[request.param](tmp_path_factory.mktemp(request.param))
    settings = {**TINY_SETTINGS, "block_size": 32, "disable_log_stats": False, "speculative_config": speculative}
    with start_engine(model, plugin={"min_move_tokens": 16}, own_process=False, **settings) as engine:
        yield Drafts(request.param, engine, model)


@pytest.mark.parametrize("kind", EDITS)
def test_behind_a_move_drafts_are_as_good_as_ever(drafts: Drafts, kind: str) -> None:
    answer, _ = drafts.ask(HISTORY, kind, "reuse")
    served = [*HISTORY, *answer.token_ids] if kind == "append" else EDITS[kind]
    context = [*served, *NEW]
    moved, share_moved = drafts.ask(context, kind, "reuse")
    exact, share_exact = drafts.ask(context, "other", "exact")
    assert moved.receipt is not None
    assert moved.receipt["fallback_reason"] is None
    num_reused = moved.receipt["kept_tokens"] + moved.receipt["moved_tokens"]
    assert moved.distance(exact) <= MAX_DIFFERENCE
    assert moved.token_ids == exact.token_ids == drafts.undrafted(context)
    assert num_reused > len(context) - 200
    assert share_exact > 0.8
    assert abs(share_moved - share_exact) < 0.1


def test_the_tail_is_kept_but_for_what_the_drafter_looks_ahead_to(drafts: Drafts) -> None:
    """Where vLLM drops the last block of a hit for the drafter, the copy ends one token early, also under `exact`."""
    history = text(900, "tail")
    answer, _ = drafts.ask(history, "tail", "exact")
    served = [*history, *answer.token_ids]
    receipt = drafts.ask([*served, *NEW], "tail", "exact")[0].receipt
    assert receipt is not None
    # The answer's last token has no KV, and the one in front of it looks ahead to it.
    assert receipt["kept_tokens"] == len(served) - 1 - LOOKS_AHEAD[drafts.kind]


def test_a_drafter_whose_kv_stays_behind_drafts_badly_and_changes_no_answer(
    drafts: Drafts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the copies of a step leave the drafter's layer as it was."""
    mover: Any = get_kv_transfer_group()._mover  # type: ignore[attr-defined]
    carry_out, (_, layer) = mover.carry_out, mover._kv_caches.values()

    def carry_out_but_for_the_drafter(copies: Any) -> None:
        before = layer.clone()
        carry_out(copies)
        layer.copy_(before)

    history = text(900, "behind")
    drafts.ask(history, "behind", "reuse")
    context = [*cut(history, 200, 520, MARKER), *NEW]
    with monkeypatch.context() as patch:
        patch.setattr(mover, "carry_out", carry_out_but_for_the_drafter)
        moved, share_moved = drafts.ask(context, "behind", "reuse")
    exact, share_exact = drafts.ask(context, "other", "exact")
    assert moved.receipt is not None
    assert moved.receipt["moved_tokens"] > 300
    assert moved.token_ids == exact.token_ids == drafts.undrafted(context)
    assert moved.distance(exact) <= MAX_DIFFERENCE
    assert share_moved < share_exact / 2
