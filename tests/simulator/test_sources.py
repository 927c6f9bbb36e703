"""Which sources stay when many sessions are served, and what the receipt says of one that did not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.simulator.machine import Factory, Machine
from tests.support.simulator.scripts import Script, Tokens, Turn
from tests.support.simulator.simulation import Simulation

BLOCK_SIZE = 16
FULL = tuple(range(10, 150))
FOLDED = (*range(10, 40), *range(80, 150))
MAX_SESSIONS = 6
DROPPED = f"source: dropped, {MAX_SESSIONS} sessions are remembered"


def _simulate(factory: Factory, turns: Iterable[Turn], **settings: Any) -> list[Any]:
    """The receipts of turns that come one after the other."""
    machine = Machine(
        async_scheduling=False,
        runner_v2=False,
        block_size=BLOCK_SIZE,
        num_blocks=2000,
        connector={"min_move_tokens": 4, "max_sessions": MAX_SESSIONS, **settings},
    )
    numbered = [
        replace(turn, request_id=f"r{i}", after=f"r{i - 1}" if i else None, max_tokens=1)
        for i, turn in enumerate(turns)
    ]
    simulation = Simulation(Script(0, machine, tuple(numbered)), factory)
    simulation.run()
    return [simulation.receipts[turn.request_id] for turn in numbered]


def _turn(prompt: Tokens, session: str, account: str | None, **fields: Any) -> Turn:
    return Turn("?", prompt, 1, session=session, account=account, **{"fidelity": "reuse", **fields})


def _sprayed(account: str | None) -> list[Turn]:
    """Twice as many sessions as the store holds, some under salts of their own."""
    return [
        _turn(tuple(range(200, 220)), f"sprayed-{i}", account, salt=str(i) if i % 2 else None)
        for i in range(2 * MAX_SESSIONS)
    ]


@pytest.mark.parametrize("size", [1, 3])
def test_sprayed_sessions_of_another_account_take_no_source(factory: Factory, size: int) -> None:
    """A victim that holds up to its share, half of the store, moves as if nobody else were there."""
    names = [f"s{i}" for i in range(size)]
    before = [_turn(FULL, name, "victim") for name in names]
    after = [_turn(FOLDED, name, "victim") for name in names]
    receipts = _simulate(factory, [*before, *_sprayed("attacker"), *after])[-size:]
    assert [receipt["moved_tokens"] > 0 for receipt in receipts] == [True] * size
    assert [receipt["fallback_reason"] for receipt in receipts] == [None] * size


def test_the_receipt_says_that_the_store_dropped_the_source(factory: Factory) -> None:
    """Where nobody has a key all sessions share one account. The reason is given once."""
    turns = [_turn(FULL, "s", None), *_sprayed(None), _turn(FOLDED, "s", None), _turn((*FOLDED, 7), "s", None)]
    *_, dropped, again = _simulate(factory, turns)
    assert dropped["moved_tokens"] == 0
    assert dropped["fallback_reason"] == DROPPED
    assert again["fallback_reason"] is None


def test_an_exact_request_has_no_reason(factory: Factory) -> None:
    """It asked for no move."""
    turns = [_turn(FULL, "s", None), *_sprayed(None), _turn(FOLDED, "s", None, fidelity="exact")]
    assert _simulate(factory, turns)[-1]["fallback_reason"] is None


def test_a_source_too_large_for_the_store_has_its_reason(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acmserve.engine.config._MIB", 1000)
    turns = [_turn(tuple(range(10, 500)), "s", None), _turn((*range(10, 100), *range(200, 500)), "s", None)]
    receipt = _simulate(factory, turns, max_source_mib=1)[-1]
    assert receipt["fallback_reason"].startswith("source: dropped,")
