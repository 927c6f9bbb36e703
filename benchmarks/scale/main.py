"""`acmserve bench scale`: does a fold stay cheap where contexts are long, edits are early, and holes are many?

Four engines on the same machine take turns (`run.py`): acmserve and stock, both at vLLM's own defaults, and both in
float32. Those in float32 are asked up to 4K alone, for the gate and for the time that it takes. SmolLM2 was trained for
8,192 tokens, and above that its window is raised. An edit with many new tokens is not timed where everything is
computed. With `--model tiny` a random model of one layer counts tokens at lengths that nobody wants to wait for, and
tells no time.

Time on two slow cores, by counts of tokens and not yet by a run. Float32 reads 190 tokens a second. What vLLM's own
defaults read differs by machine, and most without AVX-512:

    tokens a second at defaults   150   120   100    70
    minutes                       104   124   144   196

Decision: contexts begin alike and are read under one cache salt, so an engine computes each token of the longest once.
All repetitions of one length follow each other therefore, and its cells take turns in each. The shortest come first.
Text is the same in each repetition, so an interval of `auto` says nothing about other text.

Decision: `--max-minutes` is 155 unless it is said. Behind them no repetition is whole any more. A length with fewer
than five is left out, its times are kept in the file, and its bars (`bars.py`) are not met. One that would have fewer,
by its second repetition, is given up there. A signal or an engine that fails takes no length that is whole.

KV takes at most 12 GiB in all, of 24 that a machine has to have.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from acmserve.bench.agent.result_table import told_by
from acmserve.bench.edit.kinds import KindEdit
from acmserve.bench.edit.main import VLLM_DEFAULTS, read_text
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.ending import TimeLimit
from acmserve.bench.harness.engine_process import EngineProcess
from acmserve.bench.harness.machine import describe_machine, one_line
from acmserve.bench.harness.options import add_report_options, hand_over, minutes, positive
from acmserve.bench.harness.run_log import RUN, counted, progress
from acmserve.bench.models.model_folder import kv_bytes, prepare_model
from acmserve.bench.models.tiny_model import write_tiny_model
from acmserve.bench.provenance.measured import ENGINE, LEAST_REPETITIONS
from acmserve.bench.scale.bars import judge_scale
from acmserve.bench.scale.cells import ScaleCell, plan_cells, plan_nested, plan_rounds
from acmserve.bench.scale.run import ScaleEngines, ScaleTimes, as_report, run_repetition
from acmserve.bench.scale.table import BARS, COUNTS, TIMES_TABLES, draw_scale
from acmserve.errors import AcmError

TINY = "tiny"
CONTEXTS = (1024, 2048, 4096, 8192, 32768)
LONGEST = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
FRONT_SHARES = (0.5, 0.9)
NUMBERS_OF_HOLES = (1, 4, 16, 64)
FLOAT32_TO = 4096
MINUTES = 155.0
_QUICK, _QUICK_HOLES = (1024, 2048), (1, 4, 16)
"""Pieces of 2,048 tokens between 64 holes are too short to be moved."""
_AT, _AT_COUNTED = 4096, 8192
_AT_DEFAULTS_SHARE = 0.5


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench scale`. Returns 0 when the gate is green, 1 when it is red."""
    options = _parser().parse_args(argv)
    is_timed = options.model != TINY
    machine = describe_machine()
    print(one_line(machine), flush=True)
    tables = (BARS, *TIMES_TABLES) if is_timed else (COUNTS,)
    return hand_over(_measure(options) | {"machine": machine}, told_by(*tables), draw_scale, options)


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every cell, `repetitions` times or as often as fits. What the first cell does in front of them warms up."""
    is_timed = options.model != TINY
    limit = TimeLimit(options.max_minutes or (MINUTES if is_timed else None))
    contexts = options.contexts or (_QUICK if options.quick else CONTEXTS if is_timed else LONGEST)
    numbers_of_holes = _QUICK_HOLES if options.quick else NUMBERS_OF_HOLES
    at = min(_AT if is_timed else _AT_COUNTED, max(contexts))
    cells = plan_cells(contexts, FRONT_SHARES, numbers_of_holes, at=at)
    num_rounds, num = (2, 1) if options.quick or not is_timed else (options.rounds, options.repetitions)
    float32_to = options.float32_to if is_timed else math.inf
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as scratch:
        folder = _model(options.model, Path(scratch), _window(cells))
        text = read_text(folder)
        # A round more than are timed under `reuse` is that of `auto`.
        planned = plan_nested(text, cells, num * (num_rounds + 1))
        with _engines(folder, cells, float32_to, is_timed=is_timed) as engines:
            progress("warm-up, not counted")
            *rounds, auto = plan_rounds(text, cells[0], 0, num_rounds + 1)
            run_repetition(engines, ScaleTimes(cells[0]), rounds, "warm-up", auto=auto if is_timed else None)
            measured = [ScaleTimes(cell) for cell in cells]
            with kept_if_whole(measured, num), limit.kept():
                _run(engines, measured, planned, num, float32_to, limit, is_timed=is_timed)
    about = {"contexts": list(contexts), "numbers_of_holes": list(numbers_of_holes), "model": folder.name}
    return scale_report(measured, num, is_timed=is_timed, about=about | {"rounds": num_rounds})


@contextmanager
def kept_if_whole(measured: Sequence[ScaleTimes], num: int) -> Iterator[None]:
    """A signal or an engine that fails ends this block alone, where a length has been measured often enough."""
    try:
        yield
    except (KeyboardInterrupt, AcmError) as error:
        if not any(times.num_repetitions >= _least(num) for times in measured):
            raise
        RUN.ended_by = RUN.ended_by or type(error).__name__
        progress(f"ended by {RUN.ended_by}, and lengths that are whole are kept. {error}".strip())


def _least(num: int) -> int:
    """Repetitions of a cell that is told."""
    return min(num, LEAST_REPETITIONS)


def _run(
    engines: ScaleEngines,
    measured: Sequence[ScaleTimes],
    planned: dict[ScaleCell, list[KindEdit]],
    num: int,
    float32_to: float,
    limit: TimeLimit,
    *,
    is_timed: bool,
) -> None:
    """One length after the other. In each repetition all its cells take turns, and one that is cut counts for none."""
    num_asked, num_steps = 0, num * len(measured)
    for context, group in groupby(measured, key=lambda times: times.cell.context_tokens):
        some = list(group)
        asked = engines if context <= float32_to else replace(engines, ours=None, stock=None)
        for number in limit.numbers(num):
            began = limit.seconds_left
            parts = [ScaleTimes(times.cell, answers=dict(times.answers)) for times in some]
            for part in parts:
                num_asked += 1
                progress(counted(num_asked, num_steps, str(part.cell)))
                edits = planned[part.cell]
                size = len(edits) // num
                *rounds, auto = edits[(number - 1) * size :][:size]
                run_repetition(
                    asked,
                    part,
                    rounds,
                    f"scale-{number}-{part.cell}",
                    auto=auto if is_timed else None,
                    salt="scale",
                    is_slow_timed=not is_timed or part.cell.is_plain,
                )
            for times, part in zip(some, parts, strict=True):
                times.take(part)
                times.num_repetitions += 1
            if number == 2 and (_least(num) - number) * (began - limit.seconds_left) > limit.seconds_left:
                progress(f"{context:,} tokens are given up: there is no time for {_least(num)} repetitions")
                break


def scale_report(measured: Sequence[ScaleTimes], num: int, *, is_timed: bool, about: dict[str, Any]) -> dict[str, Any]:
    """JSON-ready: cells that were repeated often enough, what is left out, and the bars. Raises AcmError without any.

    `about` says what was asked for.
    """
    least = _least(num)
    whole = [times for times in measured if times.num_repetitions >= least]
    if not whole:
        raise AcmError(f"no length was measured {least} times: give --max-minutes more, or fewer --repetitions")
    report = as_report(whole, is_timed=is_timed) | about
    report["repetitions"] = min(times.num_repetitions for times in whole)
    report["left_out"] = [
        {"cell": str(times.cell), "num_whole": times.num_repetitions, "seconds_to_first_token": dict(times.seconds)}
        for times in measured
        if times.num_repetitions < least
    ]
    if is_timed:
        report["bars"] = [bar.as_dict() for bar in judge_scale(report)]
    return report


def _model(name: str, scratch: Path, window: int) -> Path:
    return write_tiny_model(scratch / TINY, window) if name == TINY else prepare_model(name)


def _window(cells: Sequence[ScaleCell]) -> int:
    """Tokens that the longest prompt and its answer take, in whole blocks."""
    needed = max(cell.context_tokens + 2 * cell.num_new for cell in cells) + 64
    return -(-needed // 128) * 128


@contextmanager
def _engines(folder: Path, cells: Sequence[ScaleCell], float32_to: float, *, is_timed: bool) -> Iterator[ScaleEngines]:
    """All engines, started together. Ours have room for a context, and for what some rounds moved out of it."""
    window = _window([cell for cell in cells if cell.context_tokens <= float32_to] or cells[:1])
    with ExitStack() as stack:

        def start(with_acmserve: bool, window: int, share: float = 1.0, **more: Any) -> EngineProcess:
            settings = {"max_model_len": window, "hf_overrides": {"max_position_embeddings": window}}
            gib = math.ceil(share * window * kv_bytes(folder) / 2**30)
            gib = 3 * gib + 1 if with_acmserve else gib + 1
            return stack.enter_context(EngineProcess(folder, with_acmserve, gib, settings | more))

        started = [start(True, window), start(False, window)]
        if is_timed:
            # Their KV has half of the bytes of float32, where the model's own precision has.
            started += [start(it, _window(cells), _AT_DEFAULTS_SHARE, **VLLM_DEFAULTS) for it in (False, True)]
        progress("... starting the engines (one to six minutes)")
        for engine in started:
            engine.wait_ready()
        yield ScaleEngines(*started)


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
        "number of holes, beside a plain append and stock, all at vLLM's own defaults and in float32. Two or three "
        "hours on two cores (--quick: ten minutes). Leave the machine alone meanwhile.",
    )
    parser.add_argument(
        "--model", default="smollm2", metavar="M", help="smollm2 (default), tiny to count tokens only, or a folder"
    )
    parser.add_argument(
        "--contexts", nargs="+", type=_length, metavar="N", help="lengths, 4096 or 4K (default: 1K to 32K, tiny 128K)"
    )
    parser.add_argument("--rounds", type=positive, default=2, metavar="N", help="edits a repetition (default 2)")
    parser.add_argument(
        "--float32-to", type=_length, default=FLOAT32_TO, metavar="N", help="no longer context there (default 4K)"
    )
    parser.add_argument(
        "--max-minutes",
        type=minutes,
        metavar="N",
        help=f"as many whole repetitions as end in them (default {MINUTES:g}, tiny has none)",
    )
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
    takes_limit=True,
)
