"""Moved KV answers nobody but the session that moved it, and never an `exact` request.

A model of two layers, so that moved KV differs from exact KV and a leak shows in the logits.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from acmserve.engine.scheduling.arrivals import Arrivals
from tests.support.engine.edits import cut, text
from tests.support.engine.engine import TINY_SETTINGS, Answer, Engine, start_engine
from tests.support.engine.tiny_model import TWO_LAYERS

HISTORY = text(900, "history")
CONTEXT = [*cut(HISTORY, 200, 520, text(11, "marker")), *text(23, "new")]
BLOCK = 128
"""Of the engine, as vLLM's default is on a CPU."""
EXACT = 1e-3
"""Rounding: what the same tokens differ by when they are prefilled in other chunks."""
NUM_EXACT_TOKENS = 211
"""Tokens of CONTEXT in front of the moved ones."""

STRANGERS: dict[str, tuple[str | None, str | None, str | None]] = {
    "exact request of the same session": ("s", "exact", "salt"),
    "request without session": (None, None, "salt"),
    "reuse request of another session": ("t", "reuse", "salt"),
    "same session id, another salt": ("s", "reuse", "pepper"),
    "same session id, no salt": ("s", "reuse", None),
}


def find_leaks(engine: Engine) -> dict[str, float]:
    """Who of the strangers gets an answer off the exact one, and by how much."""
    engine.ask(HISTORY, "s", "reuse", salt="salt")
    moved = engine.ask(CONTEXT, "s", "reuse", salt="salt")
    assert moved.receipt is not None
    assert moved.receipt["moved_tokens"] > 300
    leaks = {}
    answers: dict[str, Answer] = {}
    for name, (session, fidelity, salt) in STRANGERS.items():
        answers[name] = engine.ask(CONTEXT, session, fidelity, salt=salt)
    fresh = engine.ask(CONTEXT, salt="never used before")
    assert moved.distance(fresh) > 100 * EXACT, "moved KV is not distinguishable here, the test says nothing"
    for name, answer in answers.items():
        if answer.distance(fresh) > EXACT:
            leaks[name] = answer.distance(fresh)
        if answer.receipt is not None:
            assert answer.receipt["moved_tokens"] == 0, name
    return leaks


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """With lineage keys, and without them for the negative control."""
    path = TWO_LAYERS.write(tmp_path_factory.mktemp("models"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arrivals, "lineage_keys", request.param)
        with start_engine(path, plugin={}, own_process=False, block_size=BLOCK, **TINY_SETTINGS) as started:
            yield started


with_keys = pytest.mark.parametrize("engine", [True], ids=["keys"], indirect=True, scope="module")
without_keys = pytest.mark.parametrize("engine", [False], ids=["no keys"], indirect=True, scope="module")


@with_keys
def test_moved_kv_answers_nobody_else(engine: Engine) -> None:
    assert find_leaks(engine) == {}
    again = engine.ask([*CONTEXT, *text(5, "again")], "s", "reuse", salt="salt")
    assert again.receipt is not None
    assert again.receipt["computed_tokens"] == 5, "the session itself keeps its moved KV"


@with_keys
def test_moved_kv_of_a_prompt_shorter_than_a_block_answers_nobody_else(engine: Engine) -> None:
    """Its only block is full, and gets its name, when the answer has filled it."""
    first, second, prompt = text(60, "first"), text(60, "second"), [*text(5, "fold"), *text(60, "second"), 7, 8]
    assert len(prompt) < BLOCK
    engine.ask([*first, *second], "short", "reuse", salt="short")
    moved = engine.ask(prompt, "short", "reuse", salt="short", max_tokens=BLOCK)
    assert moved.receipt is not None
    assert moved.receipt["moved_tokens"] == 60
    whole = [*prompt, *moved.token_ids]
    fresh = engine.ask(whole, salt="never used for short prompts")
    again = engine.ask(whole, "short", "reuse", salt="short")
    assert again.distance(fresh) > 100 * EXACT, "moved KV is not distinguishable here, the test says nothing"
    assert again.receipt is not None
    assert again.receipt["kept_tokens"] >= BLOCK, "the session itself keeps its moved KV"
    for name, session, fidelity in (("exact", "short", "exact"), ("stock", None, None), ("other", "long", "reuse")):
        answer = engine.ask(whole, session, fidelity, salt="short")
        assert answer.distance(fresh) < EXACT, name
        assert name != "exact" or (answer.receipt or {})["computed_tokens"] == len(whole)


@with_keys
def test_an_exact_request_keeps_nothing_behind_the_edit(engine: Engine) -> None:
    """Under a salt that nobody else has, so that no other request has computed the text exactly."""
    engine.ask(HISTORY, "s", "reuse", salt="exact")
    engine.ask(CONTEXT, "s", "reuse", salt="exact")
    exact = engine.ask(CONTEXT, "s", "exact", salt="exact")
    assert exact.receipt is not None
    assert exact.receipt["kept_tokens"] <= NUM_EXACT_TOKENS
    assert exact.receipt["moves"] == []


@without_keys
def test_without_lineage_keys_it_leaks(engine: Engine) -> None:
    """Negative control: this is what the keys are for."""
    leaks = find_leaks(engine)
    assert "request without session" in leaks
    assert "exact request of the same session" in leaks
