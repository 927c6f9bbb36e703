"""LoRA adapters in the real engine: a fold within one adapter equals exact, and nothing crosses from one to another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from vllm.lora.request import LoRARequest

from acmserve.engine.requests import admission
from acmserve.engine.requests.adapter_loads import CHANGED
from acmserve.engine.scheduling.arrivals import OTHER_MODEL
from acmserve.plan.owner import Owner
from tests.engine.test_oracle import HISTORY, MARKER, MAX_DIFFERENCE, NEW
from tests.support.engine.adapter import RANK, write_adapter
from tests.support.engine.edits import cut
from tests.support.engine.engine import TINY_SETTINGS, Answer, Engine, counted_steps, start_engine
from tests.support.engine.tiny_model import TINY_MODELS

FOLDED = [*cut(HISTORY, 200, 520, MARKER), *NEW]


@dataclass(frozen=True)
class Adapted:
    """An engine, its model's folder, and two adapters of one name and path each."""

    engine: Engine
    model: Path
    first: LoRARequest
    second: LoRARequest

    def exact(self, adapter: LoRARequest | None, salt: str) -> Answer:
        """The fold, computed from its first token on."""
        answer = self.engine.ask(FOLDED, f"exact-{salt}", "exact", salt=f"exact-{salt}", adapter=adapter)
        assert answer.receipt is not None
        assert answer.receipt["computed_tokens"] == len(FOLDED)
        return answer


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    folder = tmp_path_factory.mktemp("adapters")
    model = TINY_MODELS[0].write(folder)
    first, second = (
        LoRARequest(name, number, str(write_adapter(model, folder / name, number)))
        for number, name in enumerate(("first", "second"), 1)
    )
    settings = {"enable_lora": True, "max_loras": 2, "max_lora_rank": RANK, "block_size": 32, **TINY_SETTINGS}
    with start_engine(model, plugin={"min_move_tokens": 16}, own_process=False, **settings) as engine:
        yield Adapted(engine, model, first, second)


def test_a_fold_equals_exact_within_each_adapter(adapted: Adapted) -> None:
    """One session and one history for all three: what one model computed says nothing about the next one's receipt."""
    exact = []
    for index, adapter in enumerate((adapted.first, adapted.second, None)):
        served = adapted.engine.ask(HISTORY, "s", "reuse", salt="s", adapter=adapter)
        moved = adapted.engine.ask(FOLDED, "s", "reuse", salt="s", adapter=adapter)
        exact.append(adapted.exact(adapter, str(index)))
        assert served.receipt is not None
        assert moved.receipt is not None
        assert (served.receipt["kept_tokens"], served.receipt["moved_tokens"]) == (0, 0)
        assert served.receipt["fallback_reason"] == (OTHER_MODEL if index else None)
        assert (moved.receipt["kept_tokens"], moved.receipt["moved_tokens"]) == (200, 380)
        assert moved.distance(exact[-1]) <= MAX_DIFFERENCE
    assert exact[0].distance(exact[1]) > 10 * MAX_DIFFERENCE, "the adapters say the same, the comparison says nothing"
    assert exact[0].distance(exact[2]) > 10 * MAX_DIFFERENCE


def test_the_holes_of_an_adapter_are_computed_in_one_step(adapted: Adapted) -> None:
    """The adapter is applied to each token of the step, wherever it stands."""
    context = [*cut(cut(HISTORY, 700, 760, MARKER), 200, 350, MARKER), *NEW]
    adapted.engine.ask(HISTORY, "holes", "reuse", salt="holes", adapter=adapted.first)
    with counted_steps(adapted.engine) as sizes:
        moved = adapted.engine.ask(context, "holes", "reuse", salt="holes", adapter=adapted.first)
    assert moved.receipt is not None
    assert len(moved.receipt["moves"]) == 2
    assert sizes == [moved.receipt["computed_tokens"]]
    exact, other = (
        adapted.engine.ask(context, name, "exact", salt=name, adapter=adapter)
        for name, adapter in (("holes exact", adapted.first), ("holes other", adapted.second))
    )
    assert moved.distance(exact) <= MAX_DIFFERENCE
    assert exact.distance(other) > 10 * MAX_DIFFERENCE, "the adapters say the same, the comparison says nothing"


def test_kv_of_another_adapter_is_found_out(adapted: Adapted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without the adapter in the owner, its KV answers the base model, and the oracle sees it."""
    monkeypatch.setattr(admission, "Owner", lambda session_id, salt, adapter: Owner(session_id, salt))
    adapted.engine.ask(HISTORY, "control", "reuse", salt="control", adapter=adapted.first)
    crossed = adapted.engine.ask(FOLDED, "control", "reuse", salt="control")
    assert crossed.receipt is not None
    assert crossed.receipt["moved_tokens"] == 380
    assert crossed.distance(adapted.exact(None, "control")) > 10 * MAX_DIFFERENCE


def test_weights_reloaded_under_the_same_name_find_no_old_kv(adapted: Adapted) -> None:
    """The files change, vLLM is told to load them in place, and the next fold moves KV of the new weights alone."""
    adapter = adapted.second
    adapted.engine.ask(HISTORY, "reload", "reuse", salt="reload", adapter=adapter)
    write_adapter(adapted.model, Path(adapter.lora_path), seed=77)
    unsure = adapted.engine.ask(FOLDED, "reload", "reuse", salt="reload", adapter=adapter)
    assert unsure.receipt is not None
    assert (unsure.receipt["computed_tokens"], unsure.receipt["fallback_reason"]) == (len(FOLDED), CHANGED)
    again = LoRARequest(adapter.lora_name, adapter.lora_int_id, adapter.lora_path, load_inplace=True)
    adapted.engine.llm.llm_engine.add_lora(again)
    first = adapted.engine.ask(HISTORY, "reload", "reuse", salt="reload", adapter=again)
    assert first.receipt is not None
    assert (first.receipt["computed_tokens"], first.receipt["fallback_reason"]) == (len(HISTORY), OTHER_MODEL)
    moved = adapted.engine.ask(FOLDED, "reload", "reuse", salt="reload", adapter=again)
    assert moved.receipt is not None
    assert moved.receipt["moved_tokens"] == 380
    exact = adapted.exact(again, "reload")
    assert moved.distance(exact) <= MAX_DIFFERENCE
    assert unsure.distance(exact) > 10 * MAX_DIFFERENCE, "the new weights say the same, the comparison says nothing"
