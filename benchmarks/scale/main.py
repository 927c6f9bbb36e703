"""`acmserve bench scale`: does a fold stay cheap where contexts are long, edits are early, and holes are many?

Three engines on the same machine take turns, one with acmserve and two without (`run.py`). With `--model tiny` a random
model of one layer counts tokens at lengths that nobody wants to wait for, and tells no time.

SmolLM2 was trained for 8,192 tokens. Above that its window is raised, so only its times mean something.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from acmserve.bench.agent.result_table import told_by
from acmserve.bench.edit.kinds import Tokens
from acmserve.bench.edit.main import VLLM_DEFAULTS, read_text
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.engine_process import EngineProcess
from acmserve.bench.harness.machine import describe_machine, one_line
from acmserve.bench.harness.options import add_report_options, hand_over, positive
from acmserve.bench.harness.run_log import counted, progress
from acmserve.bench.models.model_folder import kv_bytes, prepare_model
from acmserve.bench.models.tiny_model import write_tiny_model
from acmserve.bench.provenance.measured import ENGINE, LEAST_REPETITIONS
from acmserve.bench.scale.cells import ScaleCell, plan_cells, plan_rounds
from acmserve.bench.scale.run import ScaleEngines, ScaleTimes, as_report, run_repetition
from acmserve.bench.scale.table import COUNTS, HOLES, LENGTHS, PLACES, draw_scale

TINY = "tiny"
CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768)
LONGEST = (*CONTEXTS, 65536, 131072)
FRONT_SHARES = (0.5, 0.9)
NUMBERS_OF_HOLES = (4, 16, 64)
_QUICK = (1024, 2048)
_AT = 8192


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench scale`; 0 when the gate is green, 1 when it is red."""
    options = _parser().parse_args(argv)
    is_timed = options.model != TINY
    machine = describe_machine()
    print(one_line(machine), flush=True)
    tables = (LENGTHS, PLACES, HOLES) if is_timed else (COUNTS,)
    return hand_over(_measure(options) | {"machine": machine}, told_by(*tables), draw_scale, options)


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every cell, `repetitions` times. What the first cell does in front of them warms up."""
    is_timed = options.model != TINY
    contexts = options.contexts or (_QUICK if options.quick else CONTEXTS if is_timed else LONGEST)
    at = min(_AT, max(contexts))
    cells = plan_cells(contexts, FRONT_SHARES, NUMBERS_OF_HOLES, at)
    num_rounds, num = (2, 1) if options.quick or not is_timed else (options.rounds, options.repetitions)
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as scratch:
        folder = _model(options.model, Path(scratch), _window(cells))
        text = read_text(folder)
        with _engines(folder, _window(cells), is_timed=is_timed) as engines:
            measured = _run(engines, text, cells, num_rounds, num)
    return as_report(measured, is_timed=is_timed) | {
        "model": options.model if not is_timed else folder.name,
        "rounds": num_rounds,
        "repetitions": num,
    }


def _run(
    engines: ScaleEngines, text: Tokens, cells: Sequence[ScaleCell], num_rounds: int, num: int
) -> list[ScaleTimes]:
    """Each repetition goes through all cells, so that a busy minute does not spoil one cell alone."""
    progress("warm-up, not counted")
    run_repetition(engines, ScaleTimes(cells[0]), plan_rounds(text, cells[0], 0, num_rounds), "warm-up")
    measured = [ScaleTimes(cell) for cell in cells]
    for repetition in range(1, num + 1):
        for number, times in enumerate(measured):
            step = (repetition - 1) * len(cells) + number + 1
            progress(counted(step, num * len(cells), str(times.cell)))
            rounds = plan_rounds(text, times.cell, repetition, num_rounds)
            run_repetition(engines, times, rounds, f"scale-{repetition}-{number}")
    return measured


def _model(name: str, scratch: Path, window: int) -> Path:
    return write_tiny_model(scratch / TINY, window) if name == TINY else prepare_model(name)


def _window(cells: Sequence[ScaleCell]) -> int:
    """Tokens that the longest prompt and its answer take, in whole blocks."""
    needed = max(cell.context_tokens + 2 * cell.num_new for cell in cells) + 64
    return -(-needed // 128) * 128


@contextmanager
def _engines(folder: Path, window: int, *, is_timed: bool) -> Iterator[ScaleEngines]:
    """All engines, started together. Ours has room for a context, and for what some rounds moved out of it."""
    settings = {"max_model_len": window, "hf_overrides": {"max_position_embeddings": window}}
    one = -(-window * kv_bytes(folder) // 2**30)
    with ExitStack() as stack:

        def start(with_acmserve: bool, gib: int, **more: Any) -> EngineProcess:
            return stack.enter_context(EngineProcess(folder, with_acmserve, gib, settings | more))

        ours, stock = start(True, 3 * one + 1), start(False, one + 1)
        defaults = start(False, one + 1, **VLLM_DEFAULTS) if is_timed else None
        progress("... starting the engines (one to three minutes)")
        for engine in (ours, stock, defaults):
            if engine is not None:
                engine.wait_ready()
        yield ScaleEngines(ours, stock, defaults)


def _length(text: str) -> int:
    """Argument type: `4096`, or `4K` for as many."""
    number = text.upper().removesuffix("K")
    if not number.isdecimal() or not (length := int(number) * (1024 if text.upper().endswith("K") else 1)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens, such as 4096 or 4K")
    return length


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acmserve bench scale",
        description="Time to first token on the turn after an edit, by length of the context, place of the edit and "
        "number of holes, beside a plain append and stock engines, one of them at vLLM's own defaults. About an "
        "hour on two cores (--quick: three minutes). Leave the machine alone meanwhile.",
    )
    parser.add_argument(
        "--model", default="smollm2", metavar="M", help="smollm2 (default), tiny to count tokens only, or a folder"
    )
    parser.add_argument(
        "--contexts", nargs="+", type=_length, metavar="N", help="lengths, 4096 or 4K (default: 1K to 32K, tiny 128K)"
    )
    parser.add_argument("--rounds", type=positive, default=4, metavar="N", help="edits a repetition (default 4)")
    parser.add_argument(
        "--repetitions",
        type=positive,
        default=LEAST_REPETITIONS,
        metavar="N",
        help=f"of every cell (default {LEAST_REPETITIONS})",
    )
    add_report_options(parser, quick="contexts of 1K and 2K, once: no result to quote")
    return parser


BENCHMARK = Benchmark(
    "scale",
    "time to first token after an edit, by length of the context, place of the edit and number of holes",
    main,
    (
        BenchmarkRun("scale", ("scale",), quick=("scale", "--quick"), measures=ENGINE),
        BenchmarkRun(
            "scale-counts", ("scale", "--model", "tiny"), measures=ENGINE, is_timed=False, repeats="all counts"
        ),
    ),
)
