"""The one-layer oracle with multi-head latent attention: the rotary key of each row turns, the latent is copied.

vLLM's own CPU backend for it runs here, whose prefill reads what is cached (`gather_mla_context_cache_cpu`). vLLM
switches prefix caching off for it on the CPU all the same. `with_prefix_caching` takes that back, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from acmserve.engine.worker.copies import KVCopy
from tests.engine.test_oracle import HISTORY, MARKER, MAX_DIFFERENCE, NEW
from tests.support.engine.edits import Tokens, cut, insert, swap, text
from tests.support.engine.engine import TINY_SETTINGS, Engine, start_engine
from tests.support.engine.latent import REFERENCE_BACKEND, small_deepseek, with_prefix_caching
from tests.support.engine.oracle import check_reuse
from tests.support.engine.tiny_model import save_random

ONCE = cut(HISTORY, 200, 520, MARKER)
EDITS: dict[str, list[Tokens]] = {
    "fold": [ONCE],
    "insertion": [insert(HISTORY, 333, text(70, "inserted"))],
    "moved paragraph": [swap(HISTORY, 150, 400, 700)],
    "edit of an edit": [cut(HISTORY, 500, 580, MARKER), cut(cut(HISTORY, 500, 580, MARKER), 100, 300, MARKER)],
    "restore": [ONCE, HISTORY],
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = save_random(small_deepseek(), tmp_path_factory.mktemp("models") / "model")
    with pytest.MonkeyPatch.context() as patch:
        with_prefix_caching(patch)
        settings = TINY_SETTINGS | REFERENCE_BACKEND
        with start_engine(path, plugin={"min_move_tokens": 16}, own_process=False, **settings) as started:
            yield started


@pytest.mark.parametrize("kind", EDITS)
def test_reuse_equals_exact(engine: Engine, kind: str) -> None:
    contexts = [[*context, *NEW] for context in EDITS[kind]]
    check_reuse(engine, f"s-{kind}", HISTORY, contexts, MAX_DIFFERENCE)


def test_rotary_keys_that_do_not_turn_are_found_out(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the same move with the keys left as they were."""
    monkeypatch.setattr(KVCopy, "delta", property(lambda self: 0))
    engine.ask(HISTORY, "unturned", "reuse", salt="unturned")
    moved = engine.ask([*ONCE, *NEW], "unturned", "reuse", salt="unturned")
    assert moved.receipt is not None
    assert moved.receipt["moved_tokens"] > 100
    assert moved.distance(engine.ask([*ONCE, *NEW], "other", "exact", salt="unturned")) > 10 * MAX_DIFFERENCE
