"""The one-layer oracle: through the real engine, `reuse` must equal `exact` for every kind of edit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from acmserve.engine.worker.copies import KVCopy
from acmserve.plan.estimate import EstimatedSequence, ServedTokens, forecast
from acmserve.plan.repair import Repair
from tests.support.engine.edits import Tokens, cut, insert, swap, text
from tests.support.engine.engine import TINY_SETTINGS, Engine, start_engine
from tests.support.engine.oracle import check_reuse
from tests.support.engine.tiny_model import TINY_MODELS, TinyModel

MAX_DIFFERENCE = 1e-3
HISTORY = text(900, "history")
NEW = text(23, "new")
MARKER = text(11, "marker")

EDITS: dict[str, list[Tokens]] = {
    "fold": [cut(HISTORY, 200, 520, MARKER)],
    "deletion": [cut(HISTORY, 200, 520)],
    "head eviction": [HISTORY[300:]],
    "insertion": [insert(HISTORY, 333, text(70, "inserted"))],
    "moved paragraph": [swap(HISTORY, 150, 400, 700)],
    "two holes": [cut(cut(HISTORY, 600, 700, MARKER), 200, 350, MARKER)],
    "one replaced token": [cut(HISTORY, 400, 401, [5])],
    "edit of an edit": [cut(HISTORY, 500, 700, MARKER), cut(cut(HISTORY, 500, 700, MARKER), 100, 300, MARKER)],
    "restore": [cut(HISTORY, 200, 520, MARKER), HISTORY],
    "append after fold": [cut(HISTORY, 200, 520, MARKER), [*cut(HISTORY, 200, 520, MARKER), *text(40, "more")]],
    "fold of what came after a fold": [
        [*cut(HISTORY, 200, 520, MARKER), *text(300, "more")],
        [*cut(HISTORY, 200, 520, MARKER)[:300], *MARKER, *text(300, "more")],
    ],
}


BLOCK_SIZES = {
    "neox": (32, 128),
    "gptj": (32, 128),
    "neox-partial": (32,),
    "gptj-partial": (128,),
    "llama3": (32,),
    "yarn": (128,),
}
MAX_BLOCK_SIZE = 128
ENGINES = [(model, block_size) for model in TINY_MODELS for block_size in BLOCK_SIZES[model.name]]


def id_of(param: tuple[TinyModel, int]) -> str:
    model, block_size = param
    return f"{model.name}-{block_size}"


one_family = pytest.mark.parametrize("engine", ENGINES[:2], indirect=True, ids=id_of, scope="module")
"""For what depends on the size of blocks, and on no way to turn keys."""


@pytest.fixture(scope="module", params=ENGINES, ids=id_of)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    model, block_size = request.param
    path = model.write(tmp_path_factory.mktemp("models"))
    with start_engine(
        path, plugin={"min_move_tokens": 16}, own_process=False, block_size=block_size, **TINY_SETTINGS
    ) as started:
        yield started


@pytest.mark.parametrize("kind", EDITS)
def test_reuse_equals_exact(engine: Engine, kind: str) -> None:
    contexts = [[*context, *NEW] for context in EDITS[kind]]
    check_reuse(engine, f"s-{kind}", HISTORY, contexts, MAX_DIFFERENCE)


def test_keys_that_do_not_turn_are_found_out(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the same move with the keys left as they were.

    `test_windows` exchanges the rotations that the engine measures, which also shows.
    """
    monkeypatch.setattr(KVCopy, "delta", property(lambda self: 0))
    context = [*cut(HISTORY, 200, 520, MARKER), *NEW]
    engine.ask(HISTORY, "unturned", "reuse", salt="unturned")
    moved = engine.ask(context, "unturned", "reuse", salt="unturned")
    assert moved.receipt is not None
    assert moved.receipt["moved_tokens"] > 100
    assert moved.distance(engine.ask(context, "other", "exact", salt="unturned")) > 10 * MAX_DIFFERENCE


@one_family
@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 2])
def test_prompt_ends_around_a_block(engine: Engine, offset: int) -> None:
    """Prompts that end inside, at and just after a block, before and after the fold."""
    session = f"end-{offset}"
    history = HISTORY[: 768 + offset]
    engine.ask(history, session, "reuse", salt=session)
    folded = cut(history, 200, 520, MARKER)
    context = [*folded, *text(512 + offset - len(folded), "fill")]
    moved = engine.ask(context, session, "reuse", salt=session)
    exact = engine.ask(context, "other", "exact", salt=session)
    assert moved.distance(exact) <= MAX_DIFFERENCE
    assert moved.receipt is not None
    assert moved.receipt["moved_tokens"] > 200


@one_family
@pytest.mark.parametrize("kind", EDITS)
def test_the_forecast_is_the_receipt(engine: Engine, kind: str) -> None:
    """Token for token under `reuse`. Under `exact` what is kept of a block with moved KV is rounded down to a block."""
    session = f"f-{kind}"
    served = ServedTokens()
    for context, fidelity in [(HISTORY, "reuse"), *((c, "reuse") for c in EDITS[kind]), (EDITS[kind][-1], "exact")]:
        prompt = np.array([*context, *NEW], dtype=np.int32)
        estimated = forecast(prompt, served, fidelity, min_move_tokens=16)
        receipt = engine.ask(prompt.tolist(), session, fidelity, salt=session).receipt
        assert receipt is not None
        moves = [(move["dst_start"], move["src_start"], move["num_tokens"]) for move in receipt["moves"]]
        if fidelity == "reuse":
            counts = receipt["kept_tokens"], receipt["moved_tokens"], receipt["computed_tokens"]
            assert (estimated.num_kept, estimated.num_moved, estimated.num_computed) == counts
            assert [(move.dst_start, move.src_start, move.num_tokens) for move in estimated.moves] == moves
        else:
            assert estimated.moves == ()
            assert 0 <= estimated.num_kept - receipt["kept_tokens"] < MAX_BLOCK_SIZE
        served = served.after(prompt, receipt["kept_tokens"], moves)


REPAIR = {"head_tokens": 20, "tail_tokens": 9, "ranges": [[300, 317]]}


def test_repair_equals_exact(engine: Engine) -> None:
    """Computed and moved KV side by side in one block, and the receipt tells how many were computed for it."""
    context = [*cut(cut(HISTORY, 600, 700, MARKER), 200, 350, MARKER), *NEW]
    served = ServedTokens((EstimatedSequence(np.array(HISTORY, dtype=np.int32)),))
    estimated = forecast(np.array(context, dtype=np.int32), served, "repair", 16, Repair(20, 9, ranges=((300, 317),)))
    engine.ask(HISTORY, "repair", "reuse", salt="repair")
    repaired = engine.ask(context, "repair", "repair", salt="repair", repair=REPAIR)
    assert repaired.distance(engine.ask(context, "other", "exact", salt="repair")) <= MAX_DIFFERENCE
    assert repaired.receipt is not None
    assert estimated.num_repaired == 2 * (20 + 9) + 17
    assert repaired.receipt["repaired_tokens"] == estimated.num_repaired
    assert repaired.receipt["moved_tokens"] == estimated.num_moved == 450 - estimated.num_repaired
    assert [move["num_tokens"] for move in repaired.receipt["moves"]] == [69, 135, 171]
    again = engine.ask([*context, 5], "repair", "repair", salt="repair")
    assert again.receipt is not None
    assert again.receipt["kept_tokens"] == len(context), "a repaired prefix is kept as it was served"


def test_append_recomputes_no_old_token(engine: Engine) -> None:
    """The partial block at the end of the last turn is kept, so only the new tokens are computed."""
    first = engine.ask(HISTORY[:777], "append", "exact", salt="append", max_tokens=4)
    grown = [*HISTORY[:777], *first.token_ids, *NEW]
    second = engine.ask(grown, "append", "exact", salt="append")
    assert second.receipt is not None
    # The last sampled token never went through the model, so it counts with the new ones.
    assert second.receipt["computed_tokens"] == len(NEW) + 1
    assert second.distance(engine.ask(grown, salt="elsewhere")) <= MAX_DIFFERENCE
