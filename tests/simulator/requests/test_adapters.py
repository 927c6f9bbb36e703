"""Adapters in random scripts: each load's KV is its own, in a session that uses several of them as well."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from vllm.lora.request import LoRARequest

from acmserve.engine.requests import adapter_loads, admission
from acmserve.engine.scheduling.arrivals import OTHER_MODEL
from acmserve.plan.owner import Adapter, Owner
from tests.support.simulator.machine import Factory, Machine
from tests.support.simulator.report import Report
from tests.support.simulator.requests.adapters import with_adapters
from tests.support.simulator.scripts import Script, Turn
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.suite import MODES, Mode, dealt_seeds, first_failure, script_of


def _run(factory: Factory, mode: Mode, seed: int) -> Report:
    script = script_of(mode, seed)
    return Simulation(replace(script, turns=with_adapters(seed, script.turns, 0.7)), factory).run()


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_no_adapter_reads_the_kv_of_another(factory: Factory, mode: Mode) -> None:
    report = Report()
    for seed in dealt_seeds(15, (3, 5, 6, 7, 10, 13, 14), mode):
        report += _run(factory, mode, seed)
    assert report.num_moved_requests > 5
    assert report.fallback_reasons[OTHER_MODEL] > 5


@pytest.mark.parametrize("mode", MODES[:1], ids=str)
def test_without_the_adapter_in_the_owner_its_kv_leaks(
    factory: Factory, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    monkeypatch.setattr(admission, "Owner", lambda session_id, salt, adapter: Owner(session_id, salt))
    assert first_failure(partial(_run, factory, mode)) == "leak"


@pytest.mark.parametrize("mode", MODES[:1], ids=str)
def test_without_a_key_in_the_hashes_the_kv_of_an_earlier_load_leaks(
    factory: Factory, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: vLLM's own hashes find it."""
    monkeypatch.setattr(adapter_loads, "Adapter", lambda name, path, load, hash_key: Adapter(name, path, load))
    assert first_failure(partial(_run, factory, mode)) == "leak"


HISTORY = tuple(range(100, 300))
FOLDED = (*HISTORY[:50], 7, *HISTORY[120:], 8, 9)


def _talk(factory: Factory, *turns: tuple[tuple[int, ...], int | None, dict[str, Any]]) -> list[dict[str, Any]]:
    """The receipts of one session's turns: (prompt, adapter, other fields)."""
    numbered = tuple(
        Turn(f"r{i}", prompt, 1, "s", None, "reuse", after=f"r{i - 1}" if i else None, adapter=adapter, **fields)
        for i, (prompt, adapter, fields) in enumerate(turns)
    )
    machine = Machine(False, False, 4, 300, 128, connector={"min_move_tokens": 8})
    simulation = Simulation(Script(0, machine, numbered), factory)
    simulation.run()
    return [simulation.receipts[turn.request_id] for turn in numbered]


def test_a_session_with_two_models_moves_within_each_and_says_so(factory: Factory) -> None:
    turns = [(HISTORY, None, {}), (FOLDED, 1, {}), (FOLDED, None, {}), ((*FOLDED[:20], *FOLDED[60:]), 1, {})]
    _, other, same, edited = _talk(factory, *turns)
    assert (other["computed_tokens"], other["fallback_reason"]) == (len(FOLDED), OTHER_MODEL)
    assert (same["kept_tokens"], same["moved_tokens"], same["fallback_reason"]) == (50, 80, None)
    assert edited["moved_tokens"] > 50


def test_an_adapter_that_was_loaded_again_finds_nothing_of_before(factory: Factory) -> None:
    _, again = _talk(factory, (HISTORY, 1, {}), (FOLDED, 3, {}))
    assert (again["computed_tokens"], again["fallback_reason"]) == (len(FOLDED), OTHER_MODEL)


def test_a_redaction_reaches_every_adapter(factory: Factory) -> None:
    """The session's text is forgotten, whatever computed its KV."""
    turns = [(HISTORY, None, {}), (HISTORY, 2, {}), (FOLDED, 1, {"forget": True}), (FOLDED, 2, {}), (FOLDED, None, {})]
    *_, with_two, base = _talk(factory, *turns)
    assert (with_two["moved_tokens"], base["moved_tokens"]) == (0, 0)
    assert (with_two["kept_tokens"], base["kept_tokens"]) == (48, 48), "exact KV of what the redaction repeats stays"


def test_the_core_tells_the_connector_of_a_load(factory: Factory) -> None:
    """vLLM loads adapters beside the scheduler: the wrap around `EngineCore.add_lora` is how we know."""
    from types import SimpleNamespace

    from acmserve.engine.vllm.install import _note_adapter

    scheduler: Any = factory.scheduler(Machine(False, False, connector={}))
    loads = scheduler.connector.arrivals.loads
    lora = LoRARequest("a", 1, "/nowhere/a")
    before, _ = loads.of(lora)
    in_place = LoRARequest("a", 1, "/nowhere/a", load_inplace=True)
    assert _note_adapter(lambda core, lora: True, SimpleNamespace(scheduler=scheduler), in_place)
    assert loads.of(lora)[0] != before
    scheduler.shutdown()
