"""The pacer: what is charged, that nobody starves, and what turns cost with it and without it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.engine.config import EngineConfig
from acmserve.errors import IntegrityError
from acmserve.plan.pacing.delay_account import DelayAccount
from acmserve.plan.pacing.pacer import MAX_CLIENTS, Pacer
from tests.support.fuzzing import FACTOR
from tests.support.pause_simulation import BLOCK, FIXED, PER_TOKEN, Pause, PauseSimulation

SHARE = EngineConfig().precompute_delay_share


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def uniform(low: float, high: float) -> Pause:
    return lambda rng: rng.uniform(low, high)


def log_normal(median: float) -> Pause:
    return lambda rng: median * rng.lognormvariate(0, 1)


CLIENTS: dict[str, list[Pause]] = {
    "tools of half a second to five": [uniform(0.5, 5)],
    "a rhythm": [uniform(1.9, 2.1)],
    "fast, seldom slow": [lambda rng: rng.uniform(0.02, 0.05) if rng.random() < 0.7 else rng.uniform(0.5, 5)],
    "long tails": [log_normal(2.0)],
    "four of them": [uniform(0.5, 5), uniform(1, 3), log_normal(3.0), uniform(4, 20)],
}


@pytest.mark.parametrize("clients", CLIENTS.values(), ids=CLIENTS)
def test_ordinary_turns_cost_what_they_cost_without(clients: list[Pause]) -> None:
    """The control is the same without pacing. And work gets done: each turn leaves more than fits its pause."""
    paced, control = (PauseSimulation(share, clients, work=10_000).run(1500) for share in (SHARE, 1.0))
    assert paced.mean_ratio <= 1.03
    assert paced.num_computed > 50 * 1500
    assert control.mean_ratio >= 1.06


@pytest.mark.parametrize(
    ("clients", "least_gain"), list(zip(CLIENTS.values(), (5, 1, 1.8, 5, 2), strict=True)), ids=CLIENTS
)
def test_chunks_that_may_be_left_get_more_done_and_cost_less(clients: list[Pause], least_gain: float) -> None:
    """The control is the same where each chunk goes to its end."""
    left, control = (PauseSimulation(SHARE, clients, work=10_000, exits=exits).run(600) for exits in (True, False))
    assert left.mean_ratio <= 1.03
    assert left.pacer.account.delayed < control.pacer.account.delayed
    assert left.num_computed > least_gain * control.num_computed
    assert 0 < left.num_lost <= BLOCK * 2 * 600
    assert control.num_lost == 0


def test_what_leaving_takes_is_learned() -> None:
    """An engine that needs long for it is believed: then a chunk costs what it costs without."""
    clock = Clock()
    pacer = Pacer(SHARE, 64, 64, 1.0, clock)
    pacer.end_chunk(64, 0.2)
    for number in range(40):
        clock.now += 2.0
        pacer.begin_chunk()
        clock.now += 0.3
        pacer.end_chunk(64, 0.3, is_left=True)
        pacer.on_ready(f"r{number}", "client", clock.now - 0.1)
        pacer.on_first_token(f"r{number}")
        pacer.on_gone(f"r{number}")
    assert pacer._exit_seconds == pytest.approx(0.1, rel=0.01)
    assert pacer._step_time.predict(64) == pytest.approx(0.2), "a chunk that was left says nothing of its size"


@settings(max_examples=40 * FACTOR)
@given(
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3), st.sampled_from("abc")), max_size=30),
    st.integers(1, 50).map(lambda n: n * 100),
)
def test_after_a_silence_any_work_goes_on(turns: list[tuple[float, float, str]], seed: int) -> None:
    """Whatever was paid before: a block is computed after the silence that its time allows, at the latest."""
    simulation = PauseSimulation(SHARE, [uniform(0.5, 5), uniform(0.01, 0.2), log_normal(1.0)], seed=seed)
    simulation.run(30)
    for number, (pause, took, client) in enumerate(turns):
        simulation.compute_for(pause, 10_000)
        simulation.pacer.on_ready(f"t{number}", client, simulation.now - took)
        simulation.pacer.on_gone(f"t{number}")
    wait = DelayAccount.seconds_to(FIXED + PER_TOKEN * BLOCK)
    assert simulation.compute_for(wait + 1.0, BLOCK) == BLOCK


def test_a_long_silence_finishes_all_work() -> None:
    simulation = PauseSimulation(SHARE, [uniform(0.5, 5)]).run(200)
    assert simulation.compute_for(120.0, 20_000) == 20_000


@given(st.floats(0, 2), st.floats(0, 2), st.floats(0, 2), st.booleans())
def test_the_overlap_is_charged_and_no_more(before: float, length: float, lag: float, is_told_late: bool) -> None:
    """A request that is ready while a chunk is in flight. The engine hears of it then, or when the chunk is through."""
    clock = Clock()
    pacer = Pacer(SHARE, 16, 64, 0.2, clock)
    clock.now = 10.0
    pacer.begin_chunk()
    ready = 10.0 - before + lag
    if not is_told_late:
        clock.now = max(ready, 10.0)
        pacer.on_ready("r", "client", ready)
    clock.now = max(clock.now, 10.0 + length)
    pacer.end_chunk(16, length)
    if is_told_late:
        clock.now = max(clock.now, ready)
        pacer.on_ready("r", "client", ready)
    end = max(10.0 + length, ready if not is_told_late else 0.0)
    assert pacer.account.delayed == pytest.approx(max(end - max(10.0, ready), 0.0))
    assert pacer.account.delayed <= end - 10.0 + 1e-9
    pacer.on_ready("later", "client", clock.now)
    clock.now += 1
    pacer.on_first_token("r")
    assert pacer.account.earned == pytest.approx(SHARE * (clock.now - ready - pacer.account.delayed))


def test_no_chunk_begins_where_a_client_is_expected() -> None:
    clock = Clock()
    pacer = Pacer(SHARE, 64, 256, 1.0, clock)
    rng = random.Random(3)
    for number in range(40):
        clock.now += rng.uniform(0.95, 1.05)
        pacer.on_ready(f"r{number}", "client")
        pacer.on_gone(f"r{number}")
    for size in (64, 128, 256):
        pacer.end_chunk(size, size / 2000)
    spent = clock.now

    def allowed(silence: float) -> int:
        clock.now = spent + silence
        return pacer.allowed_tokens()

    assert [allowed(silence) for silence in (0.1, 0.85, 0.9, 0.95)] == [256, 128, 64, 0]


def test_who_is_gone_is_forgotten_and_integrity_is_checked() -> None:
    clock = Clock()
    pacer = Pacer(SHARE, 16, 64, 0.2, clock)
    for number in range(MAX_CLIENTS + 10):
        pacer.on_ready(f"r{number}", number)
        pacer.on_gone(f"r{number}")
    pacer.on_gone("never seen")
    assert len(pacer._clients) == MAX_CLIENTS
    pacer.check_integrity()
    pacer.on_ready("r", "client")
    pacer._owners.clear()
    with pytest.raises(IntegrityError, match="1 requests are waited for that are gone"):
        pacer.check_integrity()
