"""The budget-pass benchmark: its gate lets right accounts and plans pass and no others."""

from __future__ import annotations

import pytest

from acmserve.bench.budget import eviction_pass as budget_pass
from acmserve.context.transcript.omissions import EMPTY


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_pass, "NUM_TOKENS", 2_000)
    monkeypatch.setattr(budget_pass, "NUM_EPISODES", 100)
    monkeypatch.setattr(budget_pass, "NUM_BATCH_TOKENS", 200)


def test_every_row_is_measured_in_every_repetition() -> None:
    turns, evictions = budget_pass.Turns(), budget_pass.make_evictions()
    times = budget_pass.measure(turns, evictions, 3)
    assert times is not None
    assert {len(values) for values in times.values()} == {3}
    assert [name.partition(",")[0] for name in times] == [
        "taking in the resent history",
        "account",
        *(2 * ["eviction pass", "forgetting"]),
    ]
    assert all(budget_pass.row_of(name, [1.0]).limit_ms for name in times if name.startswith(("account", "eviction")))
    assert evictions[1].meter.graph.num_forgotten > 50


def test_the_gate_is_red_for_a_wrong_count() -> None:
    turns = budget_pass.Turns()
    turns.fill()
    assert turns.is_right()
    turns.meter.token_counts.base_tokens += 1
    assert not turns.is_right()


def test_the_gate_is_red_where_a_batch_takes_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    evictions = budget_pass.make_evictions()
    assert evictions[0].is_right()
    assert evictions[0].state.omissions == EMPTY
    monkeypatch.setattr(budget_pass, "NUM_BATCH_TOKENS", 10**6)
    assert not evictions[0].is_right()


def test_zero_repetitions_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        budget_pass.main(["--repetitions", "0"])
    assert "--repetitions must be at least 1" in capsys.readouterr().err
