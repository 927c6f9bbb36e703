"""Background requests: what a session gains from them, and that nobody else notices.

Random scripts with background requests between the turns (ahead.py) carry every check of the simulator and those of
`BackgroundWatch`. Short conversations show what the receipts say.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from acmserve.engine.scheduling.background_blocks import BackgroundBlocks
from acmserve.engine.scheduling.background_prefill import BackgroundPrefill
from acmserve.errors import IntegrityError
from tests.support.simulator.background import with_background
from tests.support.simulator.failure import Kind
from tests.support.simulator.machine import Factory, Machine
from tests.support.simulator.report import Report
from tests.support.simulator.scripts import Script, Tokens, Turn
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.suite import MODES, Mode, dealt_seeds, first_failure, script_of

BLOCK_SIZE = 16
HEAD, TOOL, TAIL, MARKER = tuple(range(10, 49)), tuple(range(100, 161)), tuple(range(200, 245)), (7, 8, 9)
FULL, FOLDED = HEAD + TOOL + TAIL, HEAD + MARKER + TAIL
"""145 and 87 tokens, 39 of them in common: no edit falls on a block boundary."""
NEXT, OTHER = (310, 311, 312), tuple(range(400, 500))

modes = pytest.mark.parametrize("mode", MODES, ids=str)


def _turn(prompt: Tokens, **fields: Any) -> Turn:
    return Turn("?", prompt, **{"max_tokens": 1, "session": "s", "fidelity": "exact", **fields})


def _precompute(prompt: Tokens, **fields: Any) -> Turn:
    return _turn(prompt, **{"fidelity": None, "precompute": True, **fields})


def _simulate(
    factory: Factory, mode: Mode, *turns: Turn, in_turn: bool = True, **settings: Any
) -> tuple[Simulation, list[Any]]:
    """Run the turns, one by one or at their steps. Return the simulation and the receipts in order (or None)."""
    precompute = {
        "chunk_tokens": 32,
        "chunk_s": 1000,
        "quiet_s": 0,
        "max_pool_share": 0.5,
        "min_age_s": 0,
        "delay_share": 1,
    }
    defaults = {"min_move_tokens": 4} | {f"precompute_{name}": value for name, value in precompute.items()}
    num_blocks = settings.pop("num_blocks", 100)
    machine = Machine(
        mode.async_scheduling,
        mode.runner_v2,
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        max_num_batched_tokens=256,
        connector=defaults | settings,
    )
    numbered = [
        replace(turn, request_id=f"r{i}", after=f"r{i - 1}" if in_turn and i else turn.after)
        for i, turn in enumerate(turns)
    ]
    simulation = Simulation(Script(0, machine, tuple(numbered)), factory)
    simulation.run()
    return simulation, [simulation.receipts.get(turn.request_id) for turn in numbered]


def _counts(receipt: dict[str, Any]) -> tuple[int, int, int]:
    return receipt["kept_tokens"], receipt["computed_tokens"], receipt["precomputed_tokens"]


def _num_computed(simulation: Simulation) -> tuple[int, int, int]:
    connector: Any = simulation.scheduler.connector
    counts = connector.precompute.blocks.counts
    return counts.computed_tokens, counts.used_tokens, counts.wasted_tokens


def _run(factory: Factory, mode: Mode, seed: int) -> Report:
    return Simulation(with_background(script_of(mode, seed)), factory).run()


@modes
def test_background_requests_pass_every_script(factory: Factory, mode: Mode) -> None:
    """20 scripts, most in each mode, and they reach what they are for."""
    report = Report()
    for seed in dealt_seeds(20, (1, 3, 5, 6, 10, 15, 19), mode):
        report += _run(factory, mode, seed)
    assert report.num_precomputed_tokens > 100
    assert report.background["ready"] > 100
    assert report.num_aborted > 30
    assert {"ready", "forgotten", "precompute_warm_blocks", "precompute_pool_share"} <= set(report.background)


@modes
@pytest.mark.parametrize(
    ("part", "switch", "kinds"),
    [
        (BackgroundPrefill, "yields", {"precompute"}),
        (BackgroundBlocks, "spare_warm", {"precompute"}),
        (BackgroundBlocks, "reuse_first", {"precompute", "integrity"}),
    ],
    ids=["does-not-yield", "takes-warm-blocks", "reused-last"],
)
def test_negative_control(
    factory: Factory, monkeypatch: pytest.MonkeyPatch, mode: Mode, part: type, switch: str, kinds: set[Kind]
) -> None:
    """With one of the rules off, the scripts trip."""
    monkeypatch.setattr(part, switch, False)
    assert first_failure(partial(_run, factory, mode), 20) in kinds


@modes
@pytest.mark.parametrize(
    ("part", "method"),
    [
        (BackgroundPrefill, "remove"),
        (BackgroundBlocks, "hold"),
        (BackgroundBlocks, "on_freed"),
        (BackgroundBlocks, "_on_reuse"),
    ],
    ids=["tracked-for-ever", "placed-while-held", "freed-unseen", "handed-out-unseen"],
)
def test_a_leak_in_the_ledger_is_noticed(
    factory: Factory, monkeypatch: pytest.MonkeyPatch, mode: Mode, part: type, method: str
) -> None:
    monkeypatch.setattr(part, method, lambda *args: None)
    assert first_failure(partial(_run, factory, mode), 20) in {"integrity", "precompute"}


def test_integrity_prints_the_numbers(factory: Factory) -> None:
    simulation, _ = _simulate(factory, MODES[0], _turn(FULL), _precompute(FOLDED))
    connector: Any = simulation.scheduler.connector
    connector.check_integrity()
    connector.precompute.blocks.counts.used_tokens += 5
    with pytest.raises(IntegrityError, match=r"48 tokens held, .*computed_tokens=48, used_tokens=5"):
        connector.check_integrity()


@modes
def test_what_was_foreseen_is_kept(factory: Factory, mode: Mode) -> None:
    """All but the new message. The control is the same turn without the background request."""
    _, (*_, receipt) = _simulate(factory, mode, _turn(FULL), _turn(FOLDED + NEXT))
    assert _counts(receipt) == (len(HEAD), len(FOLDED + NEXT) - len(HEAD), 0)
    simulation, (_, ready, receipt) = _simulate(factory, mode, _turn(FULL), _precompute(FOLDED), _turn(FOLDED + NEXT))
    num_precomputed = len(FOLDED) - len(HEAD)
    assert _counts(ready) == (len(HEAD), num_precomputed, 0)
    assert (ready["fidelity"], ready["fallback_reason"]) == ("exact", None)
    assert _counts(receipt) == (len(FOLDED), len(NEXT), num_precomputed)
    assert _num_computed(simulation) == (num_precomputed, num_precomputed, 0)


@modes
def test_what_was_used_is_ordinary_from_then_on(factory: Factory, mode: Mode) -> None:
    *_, receipt = _simulate(factory, mode, _turn(FULL), _precompute(FOLDED), _turn(FOLDED), _turn(FOLDED + NEXT))[1]
    assert _counts(receipt) == (len(FOLDED), len(NEXT), 0)


@modes
def test_a_forecast_that_grows_computes_its_growth(factory: Factory, mode: Mode) -> None:
    """The tail of the first forecast is copied into the second. Its tokens are used through the copy."""
    longer = FOLDED + OTHER[:20]
    simulation, (_, second, receipt) = _simulate(
        factory, mode, _precompute(FOLDED), _precompute(longer), _turn(longer + NEXT), precompute_chunk_tokens=64
    )
    assert _counts(second) == (len(FOLDED), 20, 0)
    assert _counts(receipt) == (len(longer), len(NEXT), len(longer))
    assert _num_computed(simulation) == (len(longer), len(longer), 0)


@modes
def test_an_interrupted_forecast_loses_nothing(factory: Factory, mode: Mode) -> None:
    """Somebody comes after one or two of its chunks and stays for ten steps. The forecast goes on where it was."""
    precompute, stranger = _precompute(FULL), _turn(OTHER, session=None, fidelity=None, max_tokens=10, at_step=3)
    used = _turn(FULL + NEXT, at_step=40)
    simulation, (ready, _, receipt) = _simulate(factory, mode, precompute, stranger, used, in_turn=False)
    assert simulation.report.num_preemptions == 1
    assert ready["prompt_tokens"] == len(FULL)
    assert _counts(receipt) == (len(FULL), len(NEXT), len(FULL))
    assert _num_computed(simulation) == (len(FULL), len(FULL), 0)


@modes
@pytest.mark.parametrize("quiet", [0, 5])
def test_a_forecast_waits_for_a_moment_of_quiet(factory: Factory, mode: Mode, quiet: int) -> None:
    """Somebody comes every fifth step: whoever waits for five quiet steps never gets in between."""
    others = [_turn((i, *OTHER), session=None, fidelity=None, at_step=2 + 5 * i) for i in range(6)]
    precompute = _precompute(FULL, at_step=2)
    simulation, _ = _simulate(factory, mode, *others, precompute, in_turn=False, precompute_quiet_s=quiet)
    assert (simulation.report.num_preemptions > 0) is (quiet == 0)
    assert _num_computed(simulation)[0] == len(FULL)


@modes
def test_at_its_share_of_the_pool_a_forecast_ends(factory: Factory, mode: Mode) -> None:
    """Five blocks of 100. What they hold is of use."""
    _, (ended, receipt) = _simulate(factory, mode, _precompute(FULL), _turn(FULL), precompute_max_pool_share=0.05)
    assert (ended["prompt_tokens"], ended["fallback_reason"]) == (5 * BLOCK_SIZE, "precompute_pool_share")
    assert _counts(receipt) == (5 * BLOCK_SIZE, len(FULL) - 5 * BLOCK_SIZE, 5 * BLOCK_SIZE)


@modes
def test_a_new_forecast_takes_the_place_of_an_old_one(factory: Factory, mode: Mode) -> None:
    """At the bound the oldest blocks go. A forecast that nobody came for does not stand in the way for ever."""
    simulation, (_, ready) = _simulate(
        factory, mode, _precompute(OTHER[:96]), _precompute(FULL), precompute_max_pool_share=0.1
    )
    assert ready["fallback_reason"] is None
    assert _num_computed(simulation) == (96 + len(FULL), 0, 96)


@modes
@pytest.mark.parametrize(("min_age", "reason"), [(1000, "precompute_warm_blocks"), (0, None)], ids=["warm", "old"])
def test_warm_blocks_of_others_are_spared(factory: Factory, mode: Mode, min_age: int, reason: str | None) -> None:
    """Ten blocks are asked for. Six of 18 hold nothing, the others KV of somebody who just went."""
    stranger = _turn(OTHER * 2, session=None, fidelity=None)
    settings = {"num_blocks": 19, "precompute_max_pool_share": 1.0, "precompute_min_age_s": min_age}
    _, (_, ended) = _simulate(factory, mode, stranger, _precompute(FULL), **settings)
    assert ended["fallback_reason"] == reason
    assert ended["prompt_tokens"] == (len(FULL) if reason is None else 6 * BLOCK_SIZE)


@modes
@pytest.mark.parametrize(("min_age", "num_kept"), [(0, len(FOLDED)), (1000, 32)], ids=["cold", "warm"])
def test_cold_kv_of_others_goes_before_what_was_computed_ahead(
    factory: Factory, mode: Mode, min_age: int, num_kept: int
) -> None:
    """18 blocks: 13 of a stranger, of which 12 hold KV. The forecast takes the rest, and somebody comes for four.

    Where the stranger's KV is warm, it stays, and of the forecast its last blocks go.
    """
    stranger = _turn(OTHER * 2, session=None, fidelity=None)
    newcomer = _turn(tuple(range(500, 560)), session=None, fidelity=None)
    settings = {"num_blocks": 19, "precompute_max_pool_share": 1.0, "precompute_min_age_s": min_age}
    simulation, (_, ready, _, receipt) = _simulate(
        factory, mode, stranger, _precompute(FOLDED), newcomer, _turn(FOLDED + NEXT), **settings
    )
    assert ready["fallback_reason"] is None
    assert receipt["precomputed_tokens"] == num_kept
    assert _num_computed(simulation)[1] == num_kept


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each background chunk, as they are scheduled."""
    found: list[int] = []
    add = BackgroundBlocks.add

    def noted(self: BackgroundBlocks, owner: Any, table: Any, first: int, start: int, end: int, inherited: int) -> None:
        found.append(end - start)
        add(self, owner, table, first, start, end, inherited)

    monkeypatch.setattr(BackgroundBlocks, "add", noted)
    return found


@modes
@pytest.mark.parametrize(("chunk_s", "num_chunks"), [(1000, 5), (0.5, 9), (0, 10)])
def test_a_chunk_takes_no_longer_than_it_may(
    factory: Factory, mode: Mode, chunks: list[int], chunk_s: float, num_chunks: int
) -> None:
    """The first chunk has 32 tokens. Where that took a second, one block of 16 is all for half a second.

    A step takes a second here, but none where its output is there at once.
    """
    if chunk_s == 0.5 and not mode.async_scheduling:
        num_chunks = 5
    _, (ready,) = _simulate(factory, mode, _precompute(FULL), precompute_chunk_s=chunk_s)
    assert ready["prompt_tokens"] == len(FULL) == sum(chunks)
    assert (len(chunks), max(chunks[1:])) == (num_chunks, 32 if num_chunks == 5 else 16)


@modes
def test_a_short_prompt_does_not_shorten_the_next_chunk(factory: Factory, mode: Mode, chunks: list[int]) -> None:
    """Three tokens take a second, too, for a step costs time of its own."""
    _simulate(factory, mode, _precompute(NEXT), _precompute(FULL), precompute_chunk_s=1)
    assert chunks == [3, 32, 32, 32, 32, 17]


@modes
def test_a_forgotten_session_has_no_forecast(factory: Factory, mode: Mode) -> None:
    """Neither one that is ready, nor what an aborted one left in the cache: it was no source yet."""
    aborted = replace(_precompute(FULL), abort_after_steps=8)
    stranger = _turn(OTHER, session=None, fidelity=None, max_tokens=12, at_step=3)
    forget, again = _turn(NEXT, at_step=40, forget=True), _turn(FULL, at_step=50)
    simulation, (*_, control) = _simulate(factory, mode, aborted, stranger, again, in_turn=False)
    assert control["precomputed_tokens"] > 0
    assert simulation.report.num_preemptions == simulation.report.num_aborted == 1
    simulation, (*_, receipt) = _simulate(factory, mode, aborted, stranger, forget, again, in_turn=False)
    assert _counts(receipt) == (0, len(FULL), 0)
    *_, receipt = _simulate(factory, mode, _precompute(FOLDED), _turn(NEXT, forget=True), _turn(FOLDED))[1]
    assert _counts(receipt) == (0, len(FOLDED), 0)


@modes
def test_a_redaction_that_was_foreseen_is_kept(factory: Factory, mode: Mode) -> None:
    """Its whole blocks, which are exact KV of what the redacted prompt repeats."""
    num_whole = len(FOLDED) // BLOCK_SIZE * BLOCK_SIZE
    *_, receipt = _simulate(factory, mode, _turn(FULL), _precompute(FOLDED), _turn(FOLDED + NEXT, forget=True))[1]
    assert _counts(receipt)[:2] == (num_whole, len(FOLDED + NEXT) - num_whole)
    assert receipt["precomputed_tokens"] == num_whole - len(HEAD)
