"""Many holes in one forward pass, through the real engine: the answers are those of one step a hole.

A model with two layers: what a hole sees of the one in front of it shows in the logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from acmserve.engine.vllm.hooks import HolePass
from acmserve.engine.vllm.passes import rows, runner_v1
from acmserve.errors import IntegrityError
from tests.support.engine.edits import text
from tests.support.engine.engine import TINY_SETTINGS, Engine, scheduler_of, start_engine
from tests.support.engine.holes import HISTORY, one_step_a_hole, steps_of, with_holes
from tests.support.engine.tiny_model import TWO_LAYERS

MAX_DIFFERENCE = 1e-4


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = TWO_LAYERS.write(tmp_path_factory.mktemp("models"))
    with start_engine(
        path, plugin={"min_move_tokens": 8}, own_process=False, block_size=32, **TINY_SETTINGS
    ) as started:
        yield started


@pytest.mark.parametrize("num_holes", [2, 8, 64])
def test_one_pass_answers_as_one_step_a_hole(engine: Engine, num_holes: int) -> None:
    context = with_holes(num_holes)
    apart, many = one_step_a_hole(engine, context, f"apart-{num_holes}")
    together, one = steps_of(engine, context, f"together-{num_holes}")
    assert together.receipt == apart.receipt
    assert together.receipt is not None
    assert together.receipt["moved_tokens"] > 600
    assert len(many) > num_holes
    assert len(one) == 1
    assert sum(one) == sum(many) == together.receipt["computed_tokens"]
    assert together.distance(apart) <= MAX_DIFFERENCE
    # The KV that it left behind is right, too: the next turn is answered from it.
    more = [*context, *text(9, "more")]
    again = [
        engine.ask(more, f"{name}-{num_holes}", "reuse", salt=f"{name}-{num_holes}") for name in ("apart", "together")
    ]
    assert again[0].receipt is not None
    assert again[0].receipt["kept_tokens"] == len(context)
    assert again[1].distance(again[0]) <= MAX_DIFFERENCE


@pytest.mark.parametrize(("room", "part"), [(rows, "split_rows"), (runner_v1, "_place_tokens")])
def test_a_pass_laid_out_wrong_is_found_out(
    engine: Engine, room: ModuleType, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: holes that see what is behind them, and holes that stand elsewhere."""
    context = with_holes(64)
    apart, _ = one_step_a_hole(engine, context, f"apart-{part}")
    monkeypatch.setattr(room, part, lambda common, *others: common)
    wrong, _ = steps_of(engine, context, f"wrong-{part}")
    assert wrong.distance(apart) > 100 * MAX_DIFFERENCE


def test_neighbours_in_the_batch_get_their_own_answers(engine: Engine) -> None:
    """Two passes and two strangers in one batch, and the answers go on behind them."""
    contexts = {"a": with_holes(5), "b": with_holes(9)[200:]}
    for session in contexts:
        engine.ask(HISTORY, session, "reuse", salt="beside")
    strangers = [text(70, "stranger"), text(333, "another")]
    alone = [engine.ask(stranger, max_tokens=6, salt="alone") for stranger in strangers]
    apart = [one_step_a_hole(engine, context, f"apart-{session}")[0] for session, context in contexts.items()]
    beside = [(strangers[0], None, None), (contexts["a"], "a", "reuse"), (contexts["b"], "b", "reuse")]
    answers = engine.ask_all([*beside, (strangers[1], None, None)], max_tokens=6, salt="beside")
    assert [answers[0].token_ids, answers[3].token_ids] == [answer.token_ids for answer in alone]
    for answer, reference in zip(answers[1:3], apart, strict=True):
        assert answer.distance(reference) <= MAX_DIFFERENCE
        assert answer.receipt is not None
        assert len(answer.receipt["moves"]) > 2


def test_a_pass_that_is_not_handed_over_is_found_out(engine: Engine) -> None:
    """Between steps no pass may wait: the next step would compute it in the place of its own."""
    executor = scheduler_of(engine).connector.move_executor
    executor.check_integrity()
    executor._passes.append(HolePass("r", ((3, 5),)))
    with pytest.raises(IntegrityError, match="0 and 1 passes pending between steps"):
        executor.check_integrity()
    assert [one.request_id for one in executor.take_passes()] == ["r"]
    assert executor.take_passes() == ()
    executor.check_integrity()
