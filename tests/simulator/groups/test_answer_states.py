"""States in front of answers: a move begins there, a prompt goes on from there, and what keeps them stays in bounds.

prompt   [ system ][ piece ................)[ one token )          a convolution mixes one token in
answer                                                   [ ....... )
folded   [ system ][ marker ][ one token )[ moved ........)[ new )
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from acmserve.engine.requests.receipt import ReceiptBuilder
from acmserve.engine.requests.served_source import plan_answer_key
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.engine.scheduling.edit_boundaries import EditBoundaryKeeper
from acmserve.engine.scheduling.key_evictions import KeyEvictions
from acmserve.engine.scheduling.leaps import planner
from acmserve.engine.scheduling.leaps.answer_states import AnswerStates
from acmserve.engine.vllm import block_pool
from acmserve.engine.vllm.window_tables import WindowTables
from acmserve.engine.worker.copies import StateCopy
from acmserve.errors import IntegrityError
from acmserve.plan.owner import Owner
from tests.support.simulator.failure import SimulationFailure
from tests.support.simulator.machine import Factory, Machine, block_hasher
from tests.support.simulator.recurrent.worker import RecurrentWorker
from tests.support.simulator.requests.engine_request import as_request
from tests.support.simulator.requests.media import PLACEHOLDER, fed
from tests.support.simulator.scripts import Script, Tokens, Turn
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.truth import FIRST_IMAGE, answer, is_image

BLOCK, NUM_PROMPT, NUM_SAID = 16, 301, 90
PIECE = (20, 300)


def draw(num_tokens: int, seed: int) -> Tokens:
    rng = random.Random(seed)
    return tuple(rng.randrange(800) for _ in range(num_tokens))


PROMPT = draw(NUM_PROMPT, 5)
SAID = answer(PROMPT, NUM_SAID)


def simulate(
    factory: Factory,
    *turns: Turn,
    is_async: bool = False,
    num_recurrent: int = 2,
    connector: dict[str, Any] | None = None,
) -> Simulation:
    """A finished run of these turns, one behind the other."""
    settings = connector or {}
    machine = Machine(is_async, False, BLOCK, 240, 512, connector=settings, num_recurrent=num_recurrent, retention=0)
    worker = type("Worker", (RecurrentWorker,), {"num_groups": num_recurrent})
    simulation = Simulation(Script(0, machine, turns), factory, worker_class=worker)
    simulation.run()
    return simulation


def asked(prompt: Tokens = PROMPT, foldable: tuple[tuple[int, int], ...] = (PIECE,)) -> Turn:
    return Turn("asked", prompt, NUM_SAID, session="s", foldable=foldable)


def folded(fidelity: Any = "reuse") -> Turn:
    prompt = (*PROMPT[: PIECE[0]], *range(7), *PROMPT[PIECE[1] :], *SAID, *range(20))
    return Turn("folded", prompt, 1, session="s", fidelity=fidelity, after="asked")


@pytest.mark.parametrize("is_async", [False, True])
def test_an_answer_behind_a_folded_piece_moves(factory: Factory, *, is_async: bool) -> None:
    """From its first token to its last but one: that is where the turn left its state."""
    receipt = simulate(factory, asked(), folded(), is_async=is_async).receipts["folded"]
    (move,) = receipt["moves"]
    assert (move["src_start"], move["num_tokens"]) == (NUM_PROMPT, NUM_SAID - 1)
    assert receipt["transition_norm"] is not None


def test_without_the_state_in_front_it_is_computed(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AnswerStates, "finish_step", lambda *args: [])
    receipt = simulate(factory, asked(), folded()).receipts["folded"]
    assert (receipt["moves"], receipt["fallback_reason"]) == ([], "source_state_not_kept")


def test_negative_control_a_named_state_is_never_copied(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = AnswerStates._keep

    def keep_nothing(*args: Any) -> list[StateCopy]:
        keep(*args)
        return []

    monkeypatch.setattr(AnswerStates, "_keep", keep_nothing)
    with pytest.raises(SimulationFailure, match="nobody wrote it"):
        simulate(factory, asked(), folded())


@pytest.mark.parametrize("fidelity", ["exact", "reuse"])
def test_another_answer_goes_on_where_the_first_one_began(
    factory: Factory, fidelity: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One token in front is computed. Control: vLLM alone goes on where the last whole block ended.

    The blocks are small, so that little is behind vLLM's own hit.
    """
    monkeypatch.setattr(planner, "MIN_RESTORED_TOKENS", 1)
    other = Turn("other", (*PROMPT, *range(40)), 1, session="s", fidelity=fidelity, after="asked")
    assert simulate(factory, asked(), other).receipts["other"]["kept_tokens"] == NUM_PROMPT - 1
    unnamed = simulate(factory, asked(foldable=()), other)
    assert unnamed.receipts["other"]["kept_tokens"] == NUM_PROMPT // BLOCK * BLOCK


def test_a_prompt_of_whole_blocks_needs_none(factory: Factory) -> None:
    """vLLM keeps the state there. A second turn with the same prompt finds what the first one kept."""
    simulation = simulate(factory, asked(PROMPT[:288], ((20, 200),)))
    assert isinstance(simulation.worker, RecurrentWorker)
    assert simulation.worker.num_kept == 0
    again = Turn("again", PROMPT, NUM_SAID, session="t", foldable=(PIECE,), after="asked")
    simulation = simulate(factory, asked(), again)
    assert isinstance(simulation.worker, RecurrentWorker)
    assert simulation.worker.num_kept == 2, "one of each group"


def conversation(num_turns: int) -> list[Turn]:
    """Turns that answer longer and longer: 4 tokens, 8, 12 and so on. Pieces of 30 stand in front of each answer."""
    turns: list[Turn] = []
    tokens: Tokens = ()
    pieces: tuple[tuple[int, int], ...] = ()
    for number in range(num_turns):
        pieces = (*pieces, (len(tokens) + 1, len(tokens) + 31))
        tokens = (*tokens, *draw(34 + 2 * number, number))
        after = f"t{number - 1}" if number else None
        turns.append(Turn(f"t{number}", tokens, 4 * number + 4, session="s", foldable=pieces, after=after))
        tokens = (*tokens, *answer(tokens, 4 * number + 4))
    return turns


def sent_again_behind_a_short_leap(factory: Factory) -> dict[str, Any]:
    """A leap over [70, 84) passes the last end of a block of the prompt, and the prompt is sent again.

    block 4    [ computed up to 70 )[ passed over up to 80)      it keeps the state at 70
    block 5    [ passed over up to 84 )[ computed )
    """
    said = answer(PROMPT, 15)
    prompt = (*PROMPT[: PIECE[0]], *range(49), *PROMPT[PIECE[1] :], *said, *range(3))
    turns = [replace(asked(), max_tokens=15)]
    for name, after in (("folded", "asked"), ("again", "folded")):
        turns.append(Turn(name, prompt, 1, session="s", fidelity="reuse", after=after))
    receipts = simulate(factory, *turns, is_async=True, connector={"min_move_tokens": 4}).receipts
    (move,) = receipts["folded"]["moves"]
    assert (move["dst_start"], move["num_tokens"]) == (70, 14)
    return receipts["again"]


def test_a_state_that_a_leap_passed_over_has_no_name(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: where it has one, the prompt goes on from a state of 10 tokens earlier."""
    assert sent_again_behind_a_short_leap(factory)["fallback_reason"] is None
    monkeypatch.setattr(WindowTables, "leaves_heads_uncached", False)
    with pytest.raises(SimulationFailure, match="goes on from the state at position 79"):
        sent_again_behind_a_short_leap(factory)


def sent_by_another_behind_a_restored_turn(factory: Factory) -> dict[str, Any]:
    """The second turn goes on from 305, where the first one ended, and passes 304. Another session begins as it does.

    block 18    [ 288: computed )[ passed over up to 304)      it keeps the state at 289
    block 19    [ passed over up to 305 )[ computed )
    """
    second = (*PROMPT, *answer(PROMPT, 5), *range(4))
    turns = (
        Turn("asked", PROMPT, 5, session="s"),
        Turn("second", second, 1, session="s", after="asked"),
        Turn("other", (*second[:308], *range(50, 80)), 1, session="t", fidelity="exact", after="second"),
    )
    receipts = simulate(factory, *turns, is_async=True).receipts
    assert receipts["second"]["kept_tokens"] == NUM_PROMPT + 3, "one token in front is computed"
    return receipts["other"]


def test_a_state_that_a_restored_turn_passed_over_has_no_name(
    factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: where it has one, an exact request of anybody goes on from it."""
    assert sent_by_another_behind_a_restored_turn(factory)["kept_tokens"] == NUM_PROMPT // BLOCK * BLOCK
    monkeypatch.setattr(WindowTables, "leaves_heads_uncached", False)
    with pytest.raises(SimulationFailure, match="goes on from the state at position 303"):
        sent_by_another_behind_a_restored_turn(factory)


@pytest.mark.parametrize("room", [0, 1, 3, 100])
def test_the_longest_answers_have_their_states_where_there_is_room(
    factory: Factory, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EditBoundaryKeeper, "num_left", lambda keeper, request_id: 2 * room + 1)
    turns = conversation(6)
    simulation = simulate(factory, *turns)
    connector: Any = simulation.scheduler.connector
    ((_, source),) = connector.store.items()
    kept = [state.num_tokens for state in source.states if state.is_before_answer]
    wanted = [len(turn.prompt) for turn in turns if len(turn.prompt) % BLOCK]
    assert kept == wanted[len(wanted) - min(room, len(wanted)) :]
    cache = connector.move_executor.cache
    assert all(cache.block(state.key, group) for state in source.states for group in (1, 2))


def test_no_block_is_taken_that_others_may_need(factory: Factory) -> None:
    pool: Any = simulate(factory, asked()).scheduler.kv_cache_manager.block_pool
    num_free = pool.get_num_free_blocks()
    assert block_pool.take_named(pool, [1, 2], b"key", NUM_PROMPT, num_free - 1) == []
    assert pool.get_num_free_blocks() == num_free
    taken = block_pool.take_named(pool, [1, 2], b"key", NUM_PROMPT, num_free - 2)
    assert [block_pool.cached_block(pool, b"key", group) for group in range(3)] == [None, *taken]
    pool.free_blocks(taken)
    assert block_pool.cached_block(pool, b"key", 1) is taken[0], "found until somebody needs the room"


class OfEmbeddings(Simulation):
    """Images of a script are embeddings that a request brings along. vLLM knows the placeholders' ids alone."""

    def _request(self, turn: Turn) -> Any:
        self._readers[turn.request_id].features = []
        request = as_request(replace(turn, prompt=tuple(map(fed, turn.prompt))), self._hasher)
        if any(map(is_image, turn.prompt)):
            request.prompt_embeds = torch.zeros(len(turn.prompt), 1)
        return request


@pytest.mark.parametrize("salt", [None, "salt"])
def test_embeddings_leave_no_state_for_those_who_send_their_placeholders(factory: Factory, salt: str | None) -> None:
    """All is shorter than a block, so no block hash tells the two prompts apart."""
    text = draw(30, 7)
    prompt, pieces = (*text, *[PLACEHOLDER] * 3, *text[:4]), ((2, 9),)
    shown = (*text, *[FIRST_IMAGE + 5] * 3, *text[:4])
    turns = (
        Turn("embedded", shown, 20, session="s", salt=salt, foldable=pieces),
        Turn("asked", prompt, 4, session="t", salt=salt, foldable=pieces, at_step=4),
        Turn("other", (*prompt, *range(20)), 1, session="t", salt=salt, fidelity="exact", after="asked"),
    )
    machine = Machine(False, False, 64, 240, 512, connector={}, num_recurrent=1, retention=0)
    simulation = OfEmbeddings(Script(0, machine, turns), factory, worker_class=RecurrentWorker)
    simulation.run()
    assert simulation.receipts["other"]["kept_tokens"] == len(prompt) - 1


def redacted_while_it_is_answered(factory: Factory) -> None:
    """A redaction arrives while the answer is decoded. The harness looks for every key that has to go."""
    redaction = Turn("redacted", (*PROMPT[:20], *range(9)), 1, session="s", forget=True, at_step=20)
    simulate(factory, asked(), redaction)


def test_a_redaction_takes_the_state_of_a_live_answer(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: without the keys of its states one names a block still."""
    redacted_while_it_is_answered(factory)
    add = KeyEvictions.add
    kept: set[bytes] = set()
    keep = AnswerStates._keep

    def note(answers: AnswerStates, session: SessionRequest, request: Any) -> list[StateCopy]:
        copies = keep(answers, session, request)
        kept.update(state.key for state in session.states_left)
        return copies

    monkeypatch.setattr(AnswerStates, "_keep", note)
    monkeypatch.setattr(KeyEvictions, "add", lambda self, keys: add(self, [key for key in keys if key not in kept]))
    with pytest.raises(SimulationFailure, match="keys still name a block"):
        redacted_while_it_is_answered(factory)


def test_an_answer_that_becomes_no_source_leaves_no_state(factory: Factory) -> None:
    """The store has no room for it. Control: where it has, the state is found."""
    for max_bytes in (2**20, 100):
        machine = Machine(False, False, BLOCK, 240, 512, connector={}, num_recurrent=1, retention=0)
        simulation = Simulation(Script(0, machine, (asked(),)), factory, worker_class=RecurrentWorker)
        connector: Any = simulation.scheduler.connector
        connector.store.limits = replace(connector.store.limits, max_bytes=max_bytes)
        simulation.run()
        hashes = as_request(asked(), block_hasher(BLOCK)).block_hashes
        session = SessionRequest("r", Owner("s"), "exact", ReceiptBuilder(NUM_PROMPT), np.array(PROMPT, dtype=np.int32))
        key = plan_answer_key(session, hashes, BLOCK)
        assert (connector.move_executor.cache.block(key, 1) is not None) is (max_bytes > 100)


def test_integrity(factory: Factory) -> None:
    connector: Any = simulate(factory, asked()).scheduler.connector
    connector.answers.check_integrity()
    connector.answers._held.append(connector.move_executor.pool.blocks[1])
    with pytest.raises(IntegrityError, match="1 blocks are held"):
        connector.answers.check_integrity()
