"""Short conversations on a roomy machine, one for each thing a user sees in a receipt, and for narrow passages.

The simulator's checks run in every step of these conversations. The assertions here are about the receipts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from acmserve.engine.scheduling.leaps import planner as jump_planner
from acmserve.engine.vllm import block_pool
from acmserve.plan import planner
from tests.support.simulator.machine import Factory, Machine
from tests.support.simulator.scripts import Fidelity, Script, Tokens, Turn
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.suite import MODES, Mode
from tests.support.simulator.truth import answer

NUM_ANSWERED = 3

HEAD, TOOL, TAIL, MARKER = tuple(range(10, 49)), tuple(range(100, 161)), tuple(range(200, 245)), (7, 8, 9)
MESSAGE, NEXT_MESSAGE = (300, 301, 302, 303, 304), (310, 311, 312)
"""39, 61 and 45 tokens: no edit falls on a block boundary."""


def _turn(prompt: Tokens, fidelity: Fidelity = "reuse", session: str | None = "s", salt: str | None = None) -> Turn:
    return Turn("?", prompt, NUM_ANSWERED, session, salt, fidelity if session else None)


def _converse(factory: Factory, mode: Mode, *turns: Turn, **machine: Any) -> list[dict[str, Any]]:
    """Send the turns one by one, or after the one that they name. Return the receipts of those with a session."""
    settings: dict[str, Any] = {"block_size": 16, "num_blocks": 100, "connector": {"min_move_tokens": 4}} | machine
    numbered = [
        Turn(
            request_id=f"r{index}",
            prompt=turn.prompt,
            max_tokens=turn.max_tokens,
            session=turn.session,
            salt=turn.salt,
            fidelity=turn.fidelity,
            after=turn.after or (f"r{index - 1}" if index else None),
        )
        for index, turn in enumerate(turns)
    ]
    script = Script(0, Machine(mode.async_scheduling, mode.runner_v2, **settings), tuple(numbered))
    simulation = Simulation(script, factory)
    simulation.run()
    return [simulation.receipts[turn.request_id] for turn in numbered if turn.session]


def _counts(receipt: dict[str, Any]) -> tuple[int, int, int]:
    return receipt["kept_tokens"], receipt["moved_tokens"], receipt["computed_tokens"]


def _answered(prompt: Tokens) -> Tokens:
    return prompt + answer(prompt, NUM_ANSWERED)


FULL = _answered(HEAD + TOOL + TAIL)
FOLDED = HEAD + MARKER + FULL[len(HEAD + TOOL) :] + MESSAGE

modes = pytest.mark.parametrize("mode", MODES, ids=str)


@modes
@pytest.mark.parametrize("fidelity", ["exact", "reuse"])
def test_append_computes_no_old_token(factory: Factory, mode: Mode, fidelity: Fidelity) -> None:
    """Every old token but the last of the answer, whose KV no step has computed."""
    _, receipt = _converse(factory, mode, _turn(FULL[:-NUM_ANSWERED], fidelity), _turn(FULL + MESSAGE, fidelity))
    assert _counts(receipt) == (len(FULL) - 1, 0, len(MESSAGE) + 1)
    assert receipt["fallback_reason"] is None


@modes
def test_fold_moves_what_follows(factory: Factory, mode: Mode) -> None:
    _, receipt = _converse(factory, mode, _turn(FULL[:-NUM_ANSWERED]), _turn(FOLDED))
    num_moved = len(FULL) - len(HEAD + TOOL) - 1
    assert _counts(receipt) == (len(HEAD), num_moved, len(MARKER) + 1 + len(MESSAGE))
    dst_start, src_start = len(HEAD + MARKER), len(HEAD + TOOL)
    assert receipt["moves"] == [{"dst_start": dst_start, "src_start": src_start, "num_tokens": num_moved}]


@modes
def test_next_turn_keeps_what_was_moved(factory: Factory, mode: Mode) -> None:
    following = _answered(FOLDED) + NEXT_MESSAGE
    *_, receipt = _converse(factory, mode, _turn(FULL[:-NUM_ANSWERED]), _turn(FOLDED), _turn(following))
    assert _counts(receipt) == (len(following) - len(NEXT_MESSAGE) - 1, 0, len(NEXT_MESSAGE) + 1)


@modes
def test_exact_session_moves_nothing(factory: Factory, mode: Mode) -> None:
    _, receipt = _converse(factory, mode, _turn(FULL[:-NUM_ANSWERED], "exact"), _turn(FOLDED, "exact"))
    assert _counts(receipt) == (len(HEAD), 0, len(FOLDED) - len(HEAD))


@modes
def test_restore_is_exact_and_computes_no_old_token(factory: Factory, mode: Mode) -> None:
    restored = _turn(FULL + NEXT_MESSAGE, "exact")
    *_, receipt = _converse(factory, mode, _turn(FULL[:-NUM_ANSWERED]), _turn(FOLDED), restored)
    assert _counts(receipt) == (len(FULL) - 1, 0, len(NEXT_MESSAGE) + 1)


@modes
def test_two_holes(factory: Factory, mode: Mode) -> None:
    served = _answered(HEAD + TOOL + TAIL + TOOL[::-1] + HEAD[::-1])
    edited = HEAD + MARKER + TAIL + MARKER + HEAD[::-1] + MESSAGE
    _, receipt = _converse(factory, mode, _turn(served[:-NUM_ANSWERED]), _turn(edited))
    assert _counts(receipt) == (len(HEAD), len(TAIL) + len(HEAD), 2 * len(MARKER) + len(MESSAGE))
    assert len(receipt["moves"]) == 2


@modes
def test_paragraphs_in_another_order(factory: Factory, mode: Mode) -> None:
    _, receipt = _converse(factory, mode, _turn(HEAD + TOOL + TAIL), _turn(HEAD + TAIL + TOOL + MESSAGE))
    assert _counts(receipt) == (len(HEAD), len(TAIL) + len(TOOL), len(MESSAGE))


@modes
def test_source_that_is_gone_is_computed(factory: Factory, mode: Mode) -> None:
    """A stranger's prompt takes the whole pool before the edit comes."""
    stranger = _turn(tuple(range(400, 400 + 16 * 15 + 8)), session=None)
    first, edit = _turn(FULL[:-NUM_ANSWERED]), _turn(FOLDED)
    _, receipt = _converse(factory, mode, first, stranger, edit, num_blocks=17)
    assert _counts(receipt) == (0, 0, len(FOLDED))
    assert receipt["fallback_reason"] == "source_evicted"


@pytest.fixture
def rehashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fills with the first block of each hashing that a scheduler's step does anew."""
    rehash, hashed = block_pool.rehash, []

    def counted(request: Any, first_block: int) -> None:
        hashed.append(first_block)
        rehash(request, first_block)

    monkeypatch.setattr(block_pool, "rehash", counted)
    return hashed


SERVED = tuple(range(1_000, 2_020))
DIFFED = tuple(7 if index % 34 == 33 else token for index, token in enumerate(SERVED))
"""A diffed file: a prompt of thirty small segments."""
CROWD = tuple(range(3_000, 3_000 + 16 * 70))
CROWDED = {"num_blocks": 73, "max_num_batched_tokens": 2_048}


@modes
def test_segments_that_are_gone_on_arrival_are_never_hashed(factory: Factory, mode: Mode, rehashed: list[int]) -> None:
    stranger = _turn(CROWD, session=None)
    _, receipt = _converse(factory, mode, _turn(SERVED), stranger, _turn(DIFFED), **CROWDED)
    assert (receipt["moved_tokens"], receipt["fallback_reason"]) == (0, "source_evicted")
    assert rehashed == []


@modes
def test_many_segments_that_are_gone_later_are_hashed_anew_together(
    factory: Factory, mode: Mode, rehashed: list[int]
) -> None:
    """The stranger in front of it takes the pool. The prompt is hashed once for each look, not for each segment."""
    stranger, edit = _turn(CROWD, session=None), replace(_turn(DIFFED), after="r0")
    _, receipt = _converse(factory, mode, _turn(SERVED), replace(stranger, after="r0"), edit, **CROWDED)
    assert (receipt["moved_tokens"], receipt["fallback_reason"]) == (0, "source_evicted")
    assert 0 < len(rehashed) <= 3


@modes
def test_a_long_prompt_keeps_the_marks_of_what_is_gone(
    factory: Factory, mode: Mode, rehashed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of hashes are not made in a step. What was computed in its stead serves this session's next turn."""
    monkeypatch.setattr(jump_planner, "_MAX_REHASHED_TOKENS", 0)
    stranger, edit = replace(_turn(CROWD, session=None), after="r0"), replace(_turn(DIFFED), after="r0")
    later = replace(_turn(_answered(DIFFED) + MESSAGE), after="r2")
    _, receipt, following = _converse(factory, mode, _turn(SERVED), stranger, edit, later, **CROWDED)
    assert (receipt["moved_tokens"], receipt["fallback_reason"]) == (0, "source_evicted")
    assert rehashed == []
    assert following["kept_tokens"] == len(DIFFED) + NUM_ANSWERED - 1


@modes
def test_more_moves_than_a_plan_has_are_told(factory: Factory, mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "MAX_MOVES", 3)
    served = tuple(range(1_000, 1_340))
    edited = tuple(7 if index % 34 == 33 else token for index, token in enumerate(served))
    _, receipt = _converse(factory, mode, _turn(served), _turn(edited))
    assert (len(receipt["moves"]), receipt["fallback_reason"]) == (3, "too_many_moves")


@modes
@pytest.mark.parametrize(("session", "salt"), [("other", None), ("s", "other")], ids=["session", "salt"])
def test_the_same_edit_by_somebody_else(factory: Factory, mode: Mode, session: str, salt: str | None) -> None:
    """Their own history was served to them too, so they move it themselves. Nothing moved is shared."""
    mine = _turn(FULL[:-NUM_ANSWERED]), _turn(FOLDED)
    theirs = tuple(_turn(turn.prompt, session=session, salt=salt) for turn in mine)
    receipts = _converse(factory, mode, *mine, *theirs)
    assert receipts[3] == receipts[1]


@modes
def test_tail_that_was_moved_does_not_answer_exact(factory: Factory, mode: Mode) -> None:
    """The move begins inside the last, partial block: the key of that tail must tell it from the exact one.

    block 0 and 1: FRESH (32 tokens)     block 2, partial: 6 moved tokens of TAIL, then computed ones
    """
    fresh = tuple(range(500, 532))
    prompt = fresh + TAIL[:6] + MESSAGE
    moving, exact = _turn(prompt), _turn(prompt, "exact")
    following = _turn(_answered(prompt) + NEXT_MESSAGE, "exact")
    _, moved, first_exact, receipt = _converse(factory, mode, _turn(HEAD + TAIL), moving, exact, following)
    assert _counts(moved) == (0, 6, len(fresh + MESSAGE))
    assert _counts(first_exact) == (len(fresh), 0, 6 + len(MESSAGE))
    assert _counts(receipt)[1] == 0
