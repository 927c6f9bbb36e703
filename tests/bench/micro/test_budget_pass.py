"""The budget-pass benchmark, small: its gate lets right counts and plans pass and no others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from acmserve.bench.micro import bench_budget_pass as budget_pass
from acmserve.bench.micro.bench_budget_pass import bench_eviction_pass as test_eviction_pass
from acmserve.bench.micro.bench_budget_pass import bench_forgetting as test_forgetting
from acmserve.bench.micro.bench_budget_pass import bench_meter as test_meter
from acmserve.bench.micro.bench_budget_pass import bench_taking_in_the_resent_history as test_taking_in
from acmserve.bench.micro.bench_budget_pass import evictions, turns
from acmserve.context.transcript.omissions import EMPTY

__all__ = ["evictions", "test_eviction_pass", "test_forgetting", "test_meter", "test_taking_in", "turns"]


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget_pass, "NUM_TOKENS", 2_000)
        patch.setattr(budget_pass, "NUM_EPISODES", 100)
        patch.setattr(budget_pass, "NUM_BATCH_TOKENS", 200)
        yield


def test_the_gate_is_red_for_a_wrong_count() -> None:
    made = budget_pass.Turns()
    made.fill()
    assert made.is_right()
    made.meter.token_counts.base_tokens += 1
    assert not made.is_right()


def test_the_gate_is_red_where_a_batch_takes_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = budget_pass.make_evictions()
    assert new.is_right()
    assert new.state.omissions == EMPTY
    assert old.follow().graph.num_forgotten > 50
    monkeypatch.setattr(budget_pass, "NUM_BATCH_TOKENS", 10**6)
    assert not new.is_right()
