"""What a session keeps in memory besides its transcript: as much for each message, and for evicted episodes no more."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import dataclass

import pytest

from acmserve.context.eviction.context_meter import ContextMeter
from acmserve.context.session.budget import Budget
from acmserve.context.session.history import adopt
from acmserve.context.session.low_watermark import Measured
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.template_rules import Overheads
from tests.support.context.annotated import Story
from tests.support.context.conversation import KEY

MEASURED = Measured(growth=20.0, prefill_rate=1000.0, move_rate=10_000.0)
NUM_TURNS = 8
NUM_EPISODES = (100, 400)
NUM_BYTES_MESSAGE = 900
"""Bytes that a message may cost besides its own text: an entry with its digest, its line, its sizes, its sums."""
NUM_BYTES_EVICTED = 300
"""Bytes that an evicted episode may cost more than one that is still shown: half of them leave a description."""


class SpaceWords:
    """A token is a word between spaces."""

    def starts(self, text: str) -> list[int]:
        return list(range(len(text.split())))


def work(num_episodes: int) -> list[Message]:
    """Half of them explorations, half acts on them."""
    story = Story()
    for number in range(num_episodes // 2):
        story.expl(f"find{number}", ("grep", "found " * 20))
        story.act(f"do{number}", f"find{number}", results=(("edit", "ok"),))
    return story.user().messages


@dataclass
class Kept:
    """A session at its end, and the bytes that it holds besides its messages."""

    meter: ContextMeter
    state: SessionState
    num_bytes: int


def keep(messages: list[Message], budget: Budget | None) -> Kept:
    """Take it in, in `NUM_TURNS` turns of a client that resends everything, each brought under its budget."""
    gc.collect()
    tracemalloc.start()
    try:
        meter, state = ContextMeter(SpaceWords(), Overheads(2, 3, 2)), SessionState(digest_key=KEY)
        for turn in range(1, NUM_TURNS + 1):
            state = meter.follow(adopt(state, messages[: len(messages) * turn // NUM_TURNS]).state)
            if budget is not None and meter.exceeds(budget):
                state = meter.carry_out(meter.plan(budget, MEASURED), state)
        gc.collect()
        return Kept(meter, state, tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def kept() -> dict[tuple[int, bool], Kept]:
    """By the number of episodes, and whether most of them were evicted. An exploration's description stays."""
    found = {}
    for num_episodes in NUM_EPISODES:
        messages = work(num_episodes)
        found[num_episodes, False] = keep(messages, None)
        found[num_episodes, True] = keep(messages, Budget(12 * num_episodes, 10 * num_episodes))
    return found


def test_an_evicted_episode_is_forgotten(kept: dict[tuple[int, bool], Kept]) -> None:
    """What stays live is what is shown. A fully evicted stretch is one range, whatever it held."""
    for num_episodes in NUM_EPISODES:
        after = kept[num_episodes, True]
        after.meter.check_integrity()
        assert after.meter.graph.num_forgotten >= 0.8 * num_episodes
        assert len(after.meter.graph.live) == num_episodes - after.meter.graph.num_forgotten
        assert after.meter.num_tokens < kept[num_episodes, False].meter.num_tokens / 5


def test_evictions_cost_little_memory(kept: dict[tuple[int, bool], Kept]) -> None:
    """Beside the same conversation with nothing evicted: the descriptions, and no more."""
    for num_episodes in NUM_EPISODES:
        more = kept[num_episodes, True].num_bytes - kept[num_episodes, False].num_bytes
        assert more <= NUM_BYTES_EVICTED * num_episodes, more / num_episodes


def test_memory_grows_with_the_transcript_alone(kept: dict[tuple[int, bool], Kept]) -> None:
    """As many bytes for each message after four times as many evicted episodes."""
    few, many = NUM_EPISODES
    for is_evicted in (False, True):
        small, large = kept[few, is_evicted], kept[many, is_evicted]
        for_each = (large.num_bytes - small.num_bytes) / (len(large.state.entries) - len(small.state.entries))
        assert for_each <= NUM_BYTES_MESSAGE
        assert large.num_bytes / len(large.state.entries) <= 1.1 * small.num_bytes / len(small.state.entries)
