"""A redaction reaches the engine: after `forget` nothing answers with KV that was computed in sight of the old text.

A model of two layers, so that KV which has seen the secret differs from KV which has not, and shows in the logits. One
engine serves all tests. Each test has a salt, and with it a cache, of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.engine.edits import Tokens, cut, text
from tests.support.engine.engine import TINY_SETTINGS, Answer, Engine, start_engine
from tests.support.engine.tiny_model import TWO_LAYERS

HISTORY = text(900, "history")
NEW = text(23, "new")
FOLDED = [*cut(HISTORY, 200, 520, text(11, "marker")), *NEW]
REDACTED = [*cut(HISTORY, 200, 520, text(7, "redacted")), *NEW]
BLOCK_SIZE = 32
NUM_EXACT = 200 // BLOCK_SIZE * BLOCK_SIZE
"""Tokens of the whole blocks in front of the redacted text."""
EXACT = 1e-3
"""Rounding: what the same tokens differ by when they are prefilled in other chunks."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = TWO_LAYERS.write(tmp_path_factory.mktemp("models"))
    with start_engine(path, plugin={}, own_process=False, block_size=BLOCK_SIZE, **TINY_SETTINGS) as started:
        yield started


def fold(engine: Engine, salt: str) -> None:
    """A session with a secret in its text, folded, so that the text behind it was moved."""
    engine.ask(HISTORY, "s", "reuse", salt=salt)
    assert counts(engine.ask(FOLDED, "s", "reuse", salt=salt))["moved"] > 300


def counts(answer: Answer) -> dict[str, int]:
    assert answer.receipt is not None
    return {name: answer.receipt[f"{name}_tokens"] for name in ("kept", "moved", "computed")}


def distance_to_fresh(engine: Engine, tokens: Tokens, answer: Answer) -> float:
    """From the answer that a cache gives that has never held anything."""
    return answer.distance(engine.ask(tokens, salt="never used before"))


def test_a_redaction_is_exact(engine: Engine) -> None:
    fold(engine, "redaction")
    redacted = engine.ask(REDACTED, "s", "reuse", salt="redaction", forget=True)
    assert counts(redacted) == {"kept": NUM_EXACT, "moved": 0, "computed": len(REDACTED) - NUM_EXACT}
    assert redacted.receipt is not None
    assert redacted.receipt["fallback_reason"] == "forgotten"
    assert distance_to_fresh(engine, REDACTED, redacted) <= EXACT


def test_without_forget_the_redaction_moves(engine: Engine) -> None:
    """The control: the same requests, and the KV that has seen the secret answers."""
    fold(engine, "control")
    moved = engine.ask(REDACTED, "s", "reuse", salt="control")
    assert counts(moved)["moved"] > 300
    assert distance_to_fresh(engine, REDACTED, moved) > 100 * EXACT


def test_the_same_tokens_as_the_fold_are_computed_anew(engine: Engine) -> None:
    """A redacted fragment that was folded already may look the same. Its moved KV goes all the same."""
    fold(engine, "same")
    folded = engine.ask(FOLDED, "s", "reuse", salt="same", forget=True)
    assert counts(folded)["kept"] == NUM_EXACT
    assert distance_to_fresh(engine, FOLDED, folded) <= EXACT
    again = engine.ask([*FOLDED, *NEW], "s", "reuse", salt="same")
    assert counts(again)["computed"] == len(NEW), "the session goes on from its new, exact KV"
    assert distance_to_fresh(engine, [*FOLDED, *NEW], again) <= EXACT


def test_the_old_text_is_new_to_the_session(engine: Engine) -> None:
    """Nothing of the old text is cached or moved any more. The control is `test_without_forget_the_redaction_moves`."""
    fold(engine, "old")
    shortened = [*HISTORY[:200], *NEW]
    engine.ask(shortened, "s", "reuse", salt="old", forget=True)
    old = engine.ask([*HISTORY, *NEW], "s", "reuse", salt="old")
    assert counts(old) == {"kept": 200, "moved": 0, "computed": len(HISTORY) + len(NEW) - 200}
    assert distance_to_fresh(engine, [*HISTORY, *NEW], old) <= EXACT


def test_the_old_text_may_borrow_from_the_redacted_one(engine: Engine) -> None:
    """What both share moves, from where the secret was never in sight."""
    fold(engine, "borrow")
    engine.ask(REDACTED, "s", "reuse", salt="borrow", forget=True)
    old = engine.ask([*HISTORY, *text(40, "other")], "s", "reuse", salt="borrow")
    assert old.receipt is not None
    assert old.receipt["moves"] == [{"dst_start": 520, "src_start": 207, "num_tokens": 380}]


@pytest.mark.parametrize("is_served", [True, False], ids=["served it", "not served"])
def test_another_session_keeps_what_it_was_served(engine: Engine, is_served: bool) -> None:
    """Exact blocks of the redacted text stay where another session was served them. Else only the prefix stays."""
    salt = f"shared {is_served}"
    fold(engine, salt)
    if is_served:
        engine.ask(HISTORY, "t", "exact", salt=salt)
    engine.ask(REDACTED, "s", "reuse", salt=salt, forget=True)
    other = engine.ask([*HISTORY, *NEW], "u", "exact", salt=salt)
    num_kept = len(HISTORY) // BLOCK_SIZE * BLOCK_SIZE if is_served else NUM_EXACT
    assert counts(other) == {"kept": num_kept, "moved": 0, "computed": len(HISTORY) + len(NEW) - num_kept}
    stranger = engine.ask([*HISTORY[:200], *NEW], salt=salt)
    assert distance_to_fresh(engine, [*HISTORY[:200], *NEW], stranger) <= EXACT


def test_an_unknown_session_forgets_nothing(engine: Engine) -> None:
    answer = engine.ask(REDACTED, "never seen", "reuse", salt="unknown", forget=True)
    assert counts(answer)["computed"] == len(REDACTED)
    assert answer.receipt is not None
    assert answer.receipt["fallback_reason"] is None


def test_a_reset_prefix_cache_has_no_sources(engine: Engine) -> None:
    """Then there is nothing to fall back from: not `source_evicted`, which would say that the cache was too small."""
    fold(engine, "reset")
    assert engine.llm.reset_prefix_cache()
    answer = engine.ask(REDACTED, "s", "reuse", salt="reset")
    assert counts(answer)["computed"] == len(REDACTED)
    assert answer.receipt is not None
    assert answer.receipt["fallback_reason"] is None
    scheduler: Any = engine.llm.llm_engine.engine_core.engine_core.scheduler  # type: ignore[attr-defined]
    scheduler.connector.check_integrity()
    assert len(scheduler.connector.store) == 1
