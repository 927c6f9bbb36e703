"""Counts of recorded results are those of today's code: each receipt comes again from vLLM's real scheduler.

Times grow old with every commit. Counts do not, while this file is green. The ledger names it beside the results that
it repeats. What `auto` computes depends on the text, and is not repeated here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from acmserve.bench.agent.plain_prompt import PromptWriter
from acmserve.bench.agent.scripted_agent import make_trace
from acmserve.bench.edit.kinds import EditSizes, plan_edits
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.scale.cells import ScaleCell, plan_rounds
from acmserve.bench.trace.plan import Wanted, digest, plan_parts, record_sessions
from acmserve.bench.trace.prompts import Limits
from acmserve.engine.plugin.entry_point import register
from acmserve.models.smollm2 import TOOLS_TEMPLATE
from acmserve.server.models.tokenizer import ServedTokenizer
from tests.support.docs.figures import read_result
from tests.support.simulator.machine import Factory, write_model
from tests.support.simulator.recorded import WORDS, as_recorded, counts_of, receipts_of, renumbered

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


def words(num_tokens: int) -> tuple[int, ...]:
    """A text in which two tokens are neighbours once: all words in turn, then every second one, every third, ..."""
    return tuple(WORDS[index * (1 + index // NUM_WORDS) % NUM_WORDS] for index in range(num_tokens))


def scale_receipts(factory: Factory, cell: dict[str, Any]) -> dict[str, Any]:
    """The receipts of one cell by series."""
    planned = ScaleCell(cell["context_tokens"], cell["front_share"], cell["num_holes"])
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


def trace_prompts(smollm2_folder: Path) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
    """The prompts of the recorded conversation by policy, renumbered. None where the standard library is another."""
    recorded = read_result("trace")
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    served, library = ServedTokenizer(tokenizer), read_library()
    writer = PromptWriter(tokenizer, TOOLS_TEMPLATE.read_text(encoding="utf-8"))
    wanted = Wanted(("cwl", "recency@1"), 1, Limits(6_000, 3_600), recorded["trace"]["skip"], 12)
    parts = plan_parts(wanted, record_sessions(make_trace(library, served, 8), 1), writer, served)
    if digest(parts) == recorded["trace"]["digest"]:
        for part in parts:
            (session,) = part.repetitions[0]
            yield part.policy, renumbered(prompt.tokens for prompt in session.prompts)


def test_the_tokens_of_a_whole_conversation(long_prompts: Factory, smollm2_folder: Path) -> None:
    """Every turn of `bench trace` under `exact` and `reuse`. The opening is not counted there."""
    rows = {(row["policy"], row["server"]): row for row in read_result("trace")["rows"]}
    found = {
        (policy, fidelity): receipts_of(long_prompts, prompts, fidelity, max_tokens=16)[1:]
        for policy, prompts in trace_prompts(smollm2_folder)
        for fidelity in ("exact", "reuse")
    }
    if not found:
        pytest.skip("another standard library than that of the recorded run")
    for key, receipts in found.items():
        (turns,) = rows[key]["turns"]
        assert [receipt["prompt_tokens"] for receipt in receipts] == turns["prompt_tokens"], key
        assert [receipt["computed_tokens"] for receipt in receipts] == turns["computed_tokens"], key


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
