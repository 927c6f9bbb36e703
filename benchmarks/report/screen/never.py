"""What nobody measured: a sentence for each, and one for GPUs. Told on the first screen for as long as it is so."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from acmserve.bench.agent.result_table import Report
from acmserve.bench.gpu.stage import FOLD, FP8, HOLES, SESSIONS
from acmserve.bench.report.page_section import Reports
from acmserve.bench.report.sections.edits import WITH_AMX
from acmserve.bench.report.sections.gpu import RESULT as GPU_RESULT

NEVER = (
    ("gpu", "Moves on a GPU: `make gpu` measures them, and no card has run it."),
    (WITH_AMX, "A fold at vLLM's own defaults with matrix units (AMX), where stock prefills faster."),
    ("scale", "A fold at any other length or place on a CPU, and up to 64 holes by the clock."),
    ("request-instructions", "A whole request without sessions: HTTP, prefill and the worker's half."),
    ("trace-4", "Four sessions on a CPU: turns a second of `reuse` and `auto` beside stock."),
    ("trace-4-clear", "Four sessions with clearing: first tokens of `auto` after an edit."),
    ("trace-16", "Sixteen sessions at a time."),
    ("", "Thirty-two sessions at a time."),
    ("trace-open", "Sessions that arrive by chance."),
    ("trace-pool", "A full pool, and its fallbacks."),
    ("", "Times of real agents, of which tokens are counted."),
    ("memory", "Host memory beside stock."),
    ("calibrate", "A calibration, its time included."),
    ("precompute-paired-thoughts", "Precompute where reasoning is dropped."),
    ("speculation-tokens", "10,000 tokens of drafted and verified answers beside those of `exact`."),
    ("llama", "llama.cpp with its store of prompts in host memory, which is on by default."),
)
"""By the name of a result, "" for what no benchmark measures yet. Told while there is no result of that name."""
_LONGEST_ON_A_CARD = 131_072


@dataclass(frozen=True, slots=True)
class MissingPart:
    """What the recorded suite of a card may lack. While none is recorded, `NEVER` has a row."""

    is_missing: Callable[[Report], bool]
    text: str


def _lacks(*stages: str) -> Callable[[Report], bool]:
    """Whether the suite of a card was recorded without one of these stages."""
    return lambda report: not report["stages"].keys() >= set(stages)


def _lacks_longest(report: Report) -> bool:
    """Whether no fold on a card was as long as the suite has them."""
    cells = report["stages"].get(FOLD, {}).get("cells", ())
    return max((cell["context_tokens"] for cell in cells), default=0) < _LONGEST_ON_A_CARD


PARTS = (
    MissingPart(_lacks_longest, f"{_LONGEST_ON_A_CARD:,} tokens"),
    MissingPart(_lacks(f"{FOLD}-{FP8}"), "folds in fp8"),
    MissingPart(_lacks(f"{SESSIONS}-{FP8}"), "sessions in fp8"),
    MissingPart(_lacks(HOLES), "many holes in one pass"),
)
_ON_NO_CARD = ("drafts of speculation",)
"""What no stage of the suite measures."""


def never_measured(reports: Reports, recorded: Collection[str]) -> list[str]:
    """The sentences of what is neither `recorded` nor a part of these reports."""
    found = reports.get(GPU_RESULT)
    parts = [one.text for one in PARTS if found is not None and one.is_missing(found)]
    on_a_card = f"On a GPU: {', '.join([*parts, *_ON_NO_CARD])}."
    return [*(text for name, text in NEVER if name not in recorded), on_a_card]
