"""Counts of recorded results are those of today's code: each receipt comes again from vLLM's real scheduler.

Times grow old with every commit. Counts do not, while this file is green. The ledger names it beside the results that
it repeats. What `auto` computes depends on the text, and a whole conversation on what the model sampled. Neither is
repeated here.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from acmserve.bench.edit.kinds import EditSizes, plan_edits
from acmserve.bench.scale.cells import MARKER_TOKENS, ScaleCell, plan_rounds
from acmserve.engine.plugin.entry_point import register
from acmserve.engine.scheduling import plan_queue
from tests.support.docs.figures import read_result
from tests.support.recorded.receipts import WORDS, as_recorded, counts_of, receipts_of
from tests.support.simulator.late_plans import LateExecutor
from tests.support.simulator.machine import Factory, write_model

MAX_MODEL_LEN = 132_096
CELLS: list[dict[str, Any]] = read_result("scale-counts")["cells"]
KINDS = [cell["kind"] for cell in read_result("edit-cpu")["cells"]]
ONE_ROUND = 1
NUM_WORDS = 9973
"""A prime number, so that every stride comes by all words."""


@pytest.fixture(scope="module")
def long_prompts(tmp_path_factory: pytest.TempPathFactory) -> Factory:
    register()
    return Factory(write_model(tmp_path_factory.mktemp("long")), max_model_len=MAX_MODEL_LEN)


@pytest.fixture(autouse=True)
def late_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of long prompts come after a number of steps, which no clock decides."""
    monkeypatch.setattr(plan_queue, "ThreadPoolExecutor", lambda **options: LateExecutor())


def words(num_tokens: int) -> tuple[int, ...]:
    """A text in which two tokens are neighbours once: all words in turn, then every second one, every third, ..."""
    return tuple(WORDS[index * (1 + index // NUM_WORDS) % NUM_WORDS] for index in range(num_tokens))


def scale_receipts(factory: Factory, cell: dict[str, Any]) -> dict[str, Any]:
    """The receipts of one cell by series."""
    num_message = cell["new_tokens"] - cell["num_holes"] * MARKER_TOKENS
    planned = ScaleCell(cell["context_tokens"], cell["front_share"], cell["num_holes"], num_message)
    (edit,) = plan_rounds(words(planned.context_tokens + 2 * planned.num_new), planned, 0, ONE_ROUND)
    (context,) = edit.turns
    prompt = as_recorded(edit.prompt, context, cell["receipts"]["reuse"])
    append = prompt + edit.append[len(prompt) :]
    _, reuse, appended = receipts_of(factory, (context, prompt, append), "reuse")
    _, exact = receipts_of(factory, (context, prompt), "exact")
    return {"reuse": reuse, "append": appended, "exact": exact}


@pytest.mark.parametrize("number", range(len(CELLS)))
def test_a_cell_of_scale_counts(long_prompts: Factory, number: int) -> None:
    cell = CELLS[number]
    found = scale_receipts(long_prompts, cell)
    assert found.keys() == cell["receipts"].keys()
    for series, receipt in cell["receipts"].items():
        assert counts_of(found[series]) == counts_of(receipt), series
        assert found[series]["moves"] == receipt["moves"], series


def edit_receipts(factory: Factory, kind: str, series: str, recorded: dict[str, Any]) -> list[dict[str, Any]]:
    """The receipts of the edit and of the append behind it."""
    sizes = EditSizes()
    (planned,) = plan_edits(words(9_900), 0, sizes, ONE_ROUND)
    edit = planned[kind]
    prompt = as_recorded(edit.prompt, edit.turns[0], recorded)
    append = prompt + edit.append[len(prompt) :]
    *_, edited, appended = receipts_of(factory, (*edit.turns, prompt, append), series)
    return [edited, appended]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("series", ["reuse", "repair", "exact"])
def test_the_tokens_of_a_fold(long_prompts: Factory, kind: str, series: str) -> None:
    """Those that the README's table of times stands on."""
    (cell,) = (cell for cell in read_result("edit-cpu")["cells"] if cell["kind"] == kind)
    recorded = cell["receipts"]
    edited, appended = edit_receipts(long_prompts, kind, series, recorded["reuse"])
    for name in (series, f"{series}@defaults"):
        assert counts_of(edited) == counts_of(recorded[name]), name
        assert edited["moves"] == recorded[name]["moves"], name
    if series == "reuse":
        assert counts_of(appended) == counts_of(recorded["append"])


def test_a_count_that_is_not_todays_is_found(long_prompts: Factory) -> None:
    """Negative controls: a recorded count that is off by one, and an engine that moves less than it did."""
    cell = json.loads(json.dumps(CELLS[0]))
    found = scale_receipts(long_prompts, cell)
    cell["receipts"]["exact"]["computed_tokens"] += 1
    assert counts_of(found["exact"]) != counts_of(cell["receipts"]["exact"])
    assert counts_of(found["reuse"]) == counts_of(cell["receipts"]["reuse"])
    (fold,) = (cell for cell in read_result("edit-cpu")["cells"] if cell["kind"] == "fold")
    repaired, _ = edit_receipts(long_prompts, "fold", "repair", fold["receipts"]["reuse"])
    assert counts_of(repaired) != counts_of(fold["receipts"]["reuse"])
