"""Moves on models with several KV cache groups: full attention beside sliding windows.

A slot of a window group that nobody wrote is poison, and so is one outside the window. Copies of all groups together
must leave nothing of it where a query reads. Half of the session's requests have vLLM keep boundaries for later edits.
"""

from __future__ import annotations

import random

import pytest

from acmserve.engine.groups.facts import GroupFacts
from acmserve.engine.plugin.entry_point import register
from acmserve.engine.scheduling import jump as jumping
from acmserve.engine.scheduling.cache_view import CacheView
from acmserve.engine.scheduling.plan_queue import PlanQueue
from acmserve.engine.vllm.scheduler import MoveSchedulerMixin
from acmserve.engine.vllm.window_tables import WindowTables
from tests.support.simulator.failure import Kind
from tests.support.simulator.machine import Factory, Machine, write_model
from tests.support.simulator.scripts import Script, Turn, chunked, windowed, windows_alone
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.suite import MODES, Mode, dealt_seeds, first_failure, run_scripts, script_of, seeds
from tests.support.simulator.truth import answer


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_engine_passes_every_script(factory: Factory, mode: Mode) -> None:
    """8 scripts, most in each mode. `make simulator` runs 25 times as many."""
    report = run_scripts(factory, mode, dealt_seeds(8, (0, 2, 4, 6), mode), acmserve=True, adapt=windowed)
    assert report.num_preemptions > 5
    assert report.num_moved_requests > 5
    assert report.num_turned_tokens > 100
    assert report.num_forgotten_keys > 20
    assert "source_window_evicted" in report.fallback_reasons
    assert report.num_kept_boundaries > 20


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_model_of_windows_alone_passes_every_script(factory: Factory, mode: Mode) -> None:
    report = run_scripts(factory, mode, seeds(4), acmserve=True, adapt=windows_alone)
    assert report.num_moved_requests > 2
    assert report.num_turned_tokens > 50
    assert "source_evicted" in report.fallback_reasons
    assert "source_window_evicted" not in report.fallback_reasons


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_model_of_local_chunks_passes_every_script(factory: Factory, mode: Mode) -> None:
    report = run_scripts(factory, mode, seeds(4), acmserve=True, adapt=chunked)
    assert report.num_moved_requests > 2
    assert report.num_turned_tokens > 50


def test_negative_control_a_chunk_is_copied_as_a_window(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window shorter than the chunk leaves the chunk's beginning to nobody."""
    monkeypatch.setattr(GroupFacts, "needed_from", lambda group, end: 0 if group.is_full else max(0, end - 1))
    assert first_failure(lambda seed: Simulation(chunked(script_of(MODES[0], seed)), factory).run()) is not None


def test_negative_control_a_window_alone_is_not_copied(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jumping, "plan_copies", lambda *args: [])
    adapt = windows_alone
    assert first_failure(lambda seed: Simulation(adapt(script_of(MODES[0], seed)), factory).run()) == "poison"


def failure_of(factory: Factory, mode: Mode) -> Kind | None:
    """How the first of the scripts that fails does so, for the negative controls."""
    return first_failure(lambda seed: Simulation(windowed(script_of(mode, seed)), factory).run())


def test_negative_control_one_group_is_copied(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the KV of full attention is copied: a query finds nothing in its window."""
    plan_copies = jumping.plan_copies
    monkeypatch.setattr(jumping, "plan_copies", lambda *args: [c for c in plan_copies(*args) if c.group == 0])
    assert failure_of(factory, MODES[0]) == "poison"


def test_negative_control_a_block_is_cached_without_its_head(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later request begins behind a block of which only the end was copied."""
    monkeypatch.setattr(WindowTables, "leaves_heads_uncached", False)
    assert failure_of(factory, MODES[0]) == "poison"


def test_negative_control_runner_v1_does_not_hear_of_the_padding(
    factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MoveSchedulerMixin, "_tell_padding", lambda *args: None)
    assert failure_of(factory, MODES[0]) in {"table", "poison"}


def kept_of_an_answer(factory: Factory) -> tuple[int, int]:
    """A prompt is answered, and then sent again with the answer and more: (tokens kept, tokens served before)."""
    prompt = tuple(random.Random(3).randrange(800) for _ in range(301))
    said = answer(prompt, 90)
    machine = Machine(False, False, 16, 200, max_num_batched_tokens=512, connector={}, windows=(64,), retention=0)
    turns = (
        Turn("asked", prompt, len(said), session="s"),
        Turn("again", (*prompt, *said, *range(20)), 1, session="s", after="asked"),
    )
    simulation = Simulation(Script(0, machine, turns), factory)
    simulation.run()
    return simulation.receipts["again"]["kept_tokens"], len(prompt) + len(said) - 1


def test_an_answer_is_kept_in_windows_too(factory: Factory) -> None:
    kept, served = kept_of_an_answer(factory)
    assert kept == served


def test_without_the_windows_behind_it_an_answer_is_computed(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: vLLM keeps a window where the prompt ended. Of the rest the last block alone is copied."""
    monkeypatch.setattr(CacheView, "keep_windows", lambda *args: None)
    kept, served = kept_of_an_answer(factory)
    assert kept == 301 // 16 * 16 + served % 16


class _Watched(Simulation):
    """Counts the blocks that the last request holds in the window group, after every step that leapt."""

    held: tuple[int, ...] = ()

    def _check_references(self) -> None:
        super()._check_references()
        tables = self.scheduler.kv_cache_manager.get_blocks("edited").blocks
        if len(tables[1]) > 200:
            self.held += (sum(not block.is_null for block in tables[1]),)


@pytest.fixture(scope="module")
def long_factory(tmp_path_factory: pytest.TempPathFactory) -> Factory:
    """Schedulers whose model has room for a long context."""
    register()
    return Factory(write_model(tmp_path_factory.mktemp("model")), max_model_len=131_072)


def leap_far(factory: Factory, num_leapt: int) -> tuple[int, ...]:
    """Fold 400 tokens near the start, in a model with a window of 128. What follows is leapt over."""
    rng = random.Random(7)
    history = tuple(rng.randrange(800) for _ in range(num_leapt + 1001))
    edited = (*history[:200], *range(8), *history[600:], 1, 2, 3)
    machine = Machine(
        async_scheduling=False,
        runner_v2=False,
        block_size=16,
        num_blocks=24_000,
        max_num_batched_tokens=16_384,
        connector={},
        windows=(128,),
        retention=0,
    )
    turns = (
        Turn("history", history, 1, session="s", fidelity="reuse"),
        Turn("edited", edited, 1, session="s", fidelity="reuse", after="history"),
    )
    simulation = _Watched(Script(0, machine, turns), factory)
    simulation.run()
    assert simulation.receipts["edited"]["moved_tokens"] > num_leapt
    assert simulation.held
    return simulation.held


@pytest.fixture
def planned_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated engine takes no time, so nobody would wait for a plan that is made beside the scheduler."""
    monkeypatch.setattr(PlanQueue, "max_inline_tokens", 2**31)


@pytest.mark.usefixtures("planned_at_once")
def test_a_long_leap_holds_a_window_of_blocks(long_factory: Factory) -> None:
    assert max(leap_far(long_factory, 50_000)) <= 128 // 16 + 2


@pytest.mark.usefixtures("planned_at_once")
def test_without_padding_a_leap_holds_blocks_for_all_it_passes_over(
    long_factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    monkeypatch.setattr(WindowTables, "pads", False)
    assert max(leap_far(long_factory, 10_000)) > 10_000 // 16
