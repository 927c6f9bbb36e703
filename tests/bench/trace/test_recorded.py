"""The recorded run of `bench trace`: its report reads, and its prompts can be made again."""

from __future__ import annotations

import json
import platform
from pathlib import Path

from transformers import AutoTokenizer

from acmserve.bench.agent.plain_prompt import PromptWriter
from acmserve.bench.agent.result_table import told_by
from acmserve.bench.agent.scripted_agent import make_trace
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.trace.plan import Wanted, digest, needed_window, plan_parts, record_sessions
from acmserve.bench.trace.prompts import Limits
from acmserve.bench.trace.table import NOTES, SERVERS
from acmserve.models.smollm2 import TOOLS_TEMPLATE
from acmserve.server.models.tokenizer import ServedTokenizer

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
RECORDED = json.loads((RESULTS / "trace.json").read_text(encoding="utf-8"))
LIBRARY_DIGEST = json.loads((RESULTS / "budget.json").read_text(encoding="utf-8"))["trace"]["digest"]


def test_the_recorded_report_reads() -> None:
    table = "\n".join(told_by(SERVERS, NOTES)(RECORDED))
    counts = [row["computed_tokens"] for row in RECORDED["rows"] if row["computed_tokens"] is not None]
    assert counts
    assert [one for one in counts if f"{one:,}" not in table] == []


def test_the_prompts_are_those_of_the_recorded_run(smollm2_folder: Path) -> None:
    """They are made before any server starts, so they can be made again where the standard library is the same."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    served, library = ServedTokenizer(tokenizer), read_library()
    wanted = Wanted(("cwl", "recency@1"), 1, Limits(6_000, 3_600), 11, 12)
    writer = PromptWriter(tokenizer, TOOLS_TEMPLATE.read_text(encoding="utf-8"))
    parts = plan_parts(wanted, record_sessions(make_trace(library, served, 8), 1), writer, served)
    assert [len(session.prompts) for part in parts for session in part.repetitions[0]] == [13, 13]
    is_same = RECORDED["machine"]["python"] == platform.python_version()
    if is_same and make_trace(library, served).digest == LIBRARY_DIGEST:
        assert needed_window(parts, 16) == RECORDED["window"]
        assert digest(parts) == RECORDED["trace"]["digest"]
