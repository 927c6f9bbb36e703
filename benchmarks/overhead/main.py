"""`acmserve bench request-instructions`: what a whole request without session pays for the plugin, in instructions.

    counted_scheduler.py    a scheduler step: decode, prefill, both            stock, connector, plugin
    counted_http.py         one chat request through the server's ASGI app     stock, plugin
    counted_engine.py       requests of an engine, scheduler and worker        stock, plugin
    totals.py               the parts added up, and the bar

`step-instructions` counts decode steps alone. A request arrives over HTTP, too, and is prefilled. It also runs through
the connector's half in the worker, which vLLM calls in front of and behind each layer.

The gate: every column answers and schedules what stock does, and two counts agree.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from acmserve.bench.agent.result_table import run_resumable
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.options import add_report_options, as_gate, kept_file, read_partial
from acmserve.bench.harness.run_log import progress
from acmserve.bench.overhead import counted_http, counted_scheduler
from acmserve.bench.overhead.cases import CountedCase, count_cases
from acmserve.bench.overhead.counted_engine import ANSWER_TOKENS, PROMPT_TOKENS, REAL, SCHEDULER, SMALL, WORKER
from acmserve.bench.overhead.kept_cases import KeptCases
from acmserve.bench.overhead.table import PARTS, STEP_KINDS, TOTALS
from acmserve.bench.overhead.totals import PLUGIN, STOCK, add_up, judge
from acmserve.bench.provenance.measured import SERVER

NAME = "request-instructions"
STEPS, HTTP, ENGINE = "counted_scheduler", "counted_http", "counted_engine"
AT_A_TIME = ("1", "16")
MAX_APART = 0.005
CASES = (
    *((STEPS, column) for column in (STOCK, "connector", PLUGIN)),
    *((HTTP, column) for column in (STOCK, PLUGIN)),
    *((ENGINE, column, SMALL, number) for number in AT_A_TIME for column in (STOCK, PLUGIN)),
)
FORWARD = (ENGINE, STOCK, REAL, "1")
"""SmolLM2 itself. Only stock: what the plugin adds would be lost in it."""

Counts = Mapping[tuple[str, ...], Mapping[str, int]]


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench request-instructions`. Returns 1 at a red gate. Raises AcmError without Valgrind."""
    return run_resumable(_parser(), argv, measure, NAME, PARTS, STEP_KINDS, TOTALS)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every case twice, in forks of one process. The model's forward pass once, it takes longest."""
    cases = [*CASES, *(() if options.quick else CASES), *(() if options.no_model else (FORWARD,))]
    file = kept_file(options, NAME)
    kept = KeptCases(cases, file)
    if options.resume:
        kept.resume(read_partial(file))
    if left := kept.left():
        progress("one process under Valgrind, which imports vLLM for some minutes first")
        kept.say_next()
        count_cases(left, keep=kept.keep)
    return as_report(kept.cases)


def as_report(found: Sequence[CountedCase]) -> dict[str, Any]:
    """JSON-ready. All counts are those of one request or of one step."""
    failures = [*_find_other_work(found), *_find_apart(found)]
    report: dict[str, Any] = {
        "prompt_tokens": PROMPT_TOKENS,
        "answer_tokens": ANSWER_TOKENS,
        "gate": as_gate(failures),
    }
    if failures:
        return report
    counts = {case.words: as_counts(case) for case in found}
    http = {kind: _by_column(counts, (HTTP,), (), kind) for kind in counted_http.KINDS}
    engine = {
        number: {part: _by_column(counts, (ENGINE,), (SMALL, number), part) for part in (SCHEDULER, WORKER)}
        for number in AT_A_TIME
    }
    forward = counts[FORWARD][WORKER] if FORWARD in counts else None
    rows = add_up(http, engine, forward)
    return report | {
        "steps": {kind: _by_column(counts, (STEPS,), (), kind) for kind in counted_scheduler.KINDS},
        "http": http,
        "engine": engine,
        "forward": forward,
        "totals": rows,
        "bars": judge(rows),
    }


def as_counts(case: CountedCase) -> dict[str, int]:
    """Of a scheduler the mean step, of HTTP the median request, of an engine all steps by its number of requests.

    The worker of the small model counts as many steps as there were, each as long as the median one, which decodes.
    What a prompt takes there is arithmetic, and differs by more than the plugin takes of it.
    """
    if case.words[0] == STEPS:
        return {kind: round(statistics.mean(case.parts[kind])) for kind in counted_scheduler.KINDS}
    if case.words[0] == HTTP:
        return {kind: round(statistics.median(case.parts[kind])) for kind in counted_http.KINDS}
    parts = case.parts[WORKER]
    # The forward pass, and the sampling behind it.
    steps = [forward + sample for forward, sample in zip(parts[::2], parts[1::2], strict=True)]
    worker = sum(steps) if REAL in case.words else statistics.median(steps) * len(steps)
    num_requests = int(case.words[-1])
    return {SCHEDULER: round(sum(case.parts[SCHEDULER]) / num_requests), WORKER: round(worker / num_requests)}


def _by_column(counts: Counts, first: tuple[str, ...], last: tuple[str, ...], part: str) -> dict[str, int]:
    columns = (STOCK, "connector", PLUGIN)
    return {name: counts[words][part] for name in columns if (words := (*first, name, *last)) in counts}


def _find_other_work(found: Sequence[CountedCase]) -> Iterator[str]:
    """What a column did that stock did not do."""
    stock = {(case.words[0], *case.words[2:]): case.said for case in found if case.words[1] == STOCK}
    for case in found:
        if case.said != stock[(case.words[0], *case.words[2:])]:
            yield f"{' '.join(case.words)}: other answers or other steps than stock"


def _find_apart(found: Sequence[CountedCase]) -> Iterator[str]:
    """Counts of one case that do not agree."""
    for words in dict.fromkeys(case.words for case in found):
        each = [as_counts(case) for case in found if case.words == words]
        for part in each[0]:
            counts = [one[part] for one in each]
            if max(counts) - min(counts) > MAX_APART * min(counts):
                yield f"{' '.join(words)}, {part}: counts are further apart than {MAX_APART:.1%}: {counts}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acmserve bench request-instructions",
        description=f"Instructions of a request of {PROMPT_TOKENS} prompt tokens and {ANSWER_TOKENS} of its answer "
        "without session, over HTTP, in the scheduler and in the worker, with the plugin and without it. Needs "
        "Valgrind with its header, and g++. About an hour, and more on a busy machine.",
    )
    add_report_options(parser, quick="count once, not twice", plot=False)
    parser.add_argument("--no-model", action="store_true", help="leave SmolLM2's own forward pass out, which is long")
    parser.add_argument(
        "--resume", action="store_true", help="keep the cases that a run with this --json left when it was ended"
    )
    return parser


BENCHMARK = Benchmark(
    "request-instructions",
    "what a whole request without session pays for the plugin, in instructions",
    main,
    (
        BenchmarkRun(
            "request-instructions",
            ("request-instructions",),
            can_plot=False,
            measures=SERVER,
            is_timed=False,
            no_exact="no request has a session",
            resume_flags=("--resume",),
        ),
    ),
)
