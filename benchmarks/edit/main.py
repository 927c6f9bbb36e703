"""`acmserve bench edit`: time to first token on the turn after a context edit, beside an append and a stock engine.

Four engines on the same machine take turns, two with acmserve and two without, two at vLLM's own defaults and two not.
Only one computes at a time. A fold and two folds are the default (`kinds.py`, `run.py`), `--kinds` measures others,
beside llama.cpp's server where there is one.

With `--max-minutes` there are as many whole repetitions as fit, each with all kinds in it.

When the gate is red the speed is worthless: such a kind has no times, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from acmserve.bench.agent.result_table import run_benchmark
from acmserve.bench.edit.kinds import KINDS, QUICK, EditSizes, KindEdit, Tokens, plan_edits
from acmserve.bench.edit.run import LLAMA_WAYS, NUM_ROUNDS, Cell, EditEngines, as_report, compare_cell, run_cell
from acmserve.bench.edit.table import KINDS_TABLE, LLAMA_TABLE, TURNS, TURNS_AT_DEFAULTS
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.ending import TimeLimit
from acmserve.bench.harness.engine_process import EngineProcess
from acmserve.bench.harness.llama_cpp import NOT_FOUND, LlamaProcess, find_llama_server, read_version
from acmserve.bench.harness.options import add_report_options, minutes, positive
from acmserve.bench.harness.run_log import counted, progress
from acmserve.bench.models.model_folder import prepare_model
from acmserve.bench.provenance.measured import ENGINE
from acmserve.errors import AcmError

DEFAULT_KINDS = ("fold", "two-holes")
WARM_UP = EditSizes(folded=500, suffix=1000)
"""Enough for whatever runs for the first time. It is as long as no other context."""
VLLM_DEFAULTS = {"dtype": "auto", "enforce_eager": False}
"""What vLLM has where nobody says it. `LocalEngine` says otherwise on a CPU."""
LLAMA_WINDOW = 8192
_SMOLLM2 = "smollm2"


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench edit`. Returns 0 when the gate is green, 1 when it is red."""
    return run_benchmark(_parser(), argv, measure, TURNS_AT_DEFAULTS, TURNS, KINDS_TABLE, LLAMA_TABLE)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every kind that was asked for, `repetitions` times, or as often as fits. A shorter one in front warms up."""
    limit, folder = TimeLimit(options.max_minutes), prepare_model(options.model)
    sizes, num = (QUICK, 1) if options.quick else (EditSizes(), options.repetitions)
    kinds = list(KINDS) if options.kinds == ["all"] else options.kinds
    text, cells = read_text(folder), [Cell(kind) for kind in kinds]
    with _engines(folder, options) as engines:
        flags = {llama.way.name: " ".join(llama.way.flags) for llama in engines.llamas}
        with limit.kept():
            progress("warm-up, not counted")
            _repeat(engines, [Cell(kinds[0])], plan_edits(text, 0, WARM_UP, NUM_ROUNDS), "warm-up", is_first=False)
            for number in limit.numbers(num):
                progress(counted(number, num, "repetition"))
                rounds = plan_edits(text, number, sizes, NUM_ROUNDS)
                _repeat(engines, cells, rounds, f"edit-{number}", is_first=number == 1)
    if not cells[0].answers:
        raise AcmError(f"no repetition was whole after {options.max_minutes:g} minutes: give --max-minutes more")
    return as_report(cells, sizes) | {"model": folder.name, "llama_cpp": flags, "max_minutes": options.max_minutes}


def _repeat(
    engines: EditEngines, cells: Sequence[Cell], rounds: Sequence[Mapping[str, KindEdit]], key: str, *, is_first: bool
) -> None:
    """One repetition of all cells. They have none of it where it is cut. Answers are compared in the first."""
    repetition = [Cell(cell.kind) for cell in cells]
    for one in repetition:
        edits = [edits[one.kind] for edits in rounds]
        run_cell(engines, one, edits, key)
        if is_first:
            compare_cell(engines, one, edits, key)
    for cell, one in zip(cells, repetition, strict=True):
        cell.take(one)
        cell.num_new = one.num_new


@contextmanager
def _engines(folder: Path, options: argparse.Namespace) -> Iterator[EditEngines]:
    """All engines, started together."""
    with ExitStack() as stack:
        ours = stack.enter_context(EngineProcess(folder, with_acmserve=True))
        stock = stack.enter_context(EngineProcess(folder, with_acmserve=False))
        ours_at_defaults = stack.enter_context(EngineProcess(folder, with_acmserve=True, settings=VLLM_DEFAULTS))
        defaults = stack.enter_context(EngineProcess(folder, with_acmserve=False, settings=VLLM_DEFAULTS))
        progress("... starting four engines, of which two compile (two to four minutes)")
        for engine in (ours, stock, ours_at_defaults, defaults):
            engine.wait_ready()
        wanted = not set(options.kinds) <= set(DEFAULT_KINDS)
        yield EditEngines(ours, stock, ours_at_defaults, defaults, _start_llamas(options, stack) if wanted else ())


def _start_llamas(options: argparse.Namespace, stack: ExitStack) -> list[LlamaProcess]:
    """llama.cpp's server on the GGUF of the model, once for each way. None, and why, where it cannot be had."""
    server = find_llama_server(options.llama_server)
    if server is None or options.model != _SMOLLM2:
        progress(f"... llama.cpp is left out: {NOT_FOUND if server is None else 'only the GGUF of SmolLM2 is known'}")
        return []
    from acmserve.models.smollm2 import MODEL

    gguf, num_threads = MODEL.take_gguf(progress=progress), len(os.sched_getaffinity(0))
    progress(f"... llama.cpp, {read_version(server)}")
    llamas = [stack.enter_context(LlamaProcess(server, gguf, LLAMA_WINDOW, num_threads, way)) for way in LLAMA_WAYS]
    for llama in llamas:
        llama.wait_ready()
    return llamas


def read_text(folder: Path) -> Tokens:
    """Real text in the model's tokens: the demo's conversation, then the sources of the benchmarks."""
    from transformers import AutoTokenizer

    from acmserve.bench.demo.conversation import load

    texts = [message["content"] for message in load().messages]
    texts += [file.read_text(encoding="utf-8") for file in sorted(Path(__file__).parents[1].rglob("*.py"))]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return tuple(tokenizer("\n\n".join(texts), add_special_tokens=False, verbose=False).input_ids)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acmserve bench edit",
        description="Time to first token on the turn after a context edit, beside a plain append on the same engine "
        "and stock engines on the same machine, both at the same flags and at vLLM's own defaults. Some twenty minutes "
        "on two cores (--quick: four). Leave the machine alone meanwhile.",
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=["all", *KINDS],
        default=list(DEFAULT_KINDS),
        metavar="KIND",
        help=f"all, or some of: {', '.join(KINDS)} (default: a fold and two folds, as in the README)",
    )
    parser.add_argument("--model", default=_SMOLLM2, metavar="M", help="smollm2 (default), or a Hugging Face folder")
    parser.add_argument("--llama-server", type=Path, metavar="PATH", help="llama.cpp's server (default: on PATH)")
    parser.add_argument("--repetitions", type=positive, default=5, metavar="N", help="median of N (default 5)")
    parser.add_argument(
        "--max-minutes", type=minutes, metavar="N", help="as many whole repetitions as end in them, and no more"
    )
    add_report_options(parser, quick="one repetition of a shorter context: no result to quote", plot=False)
    return parser


BENCHMARK = Benchmark(
    "edit",
    "time to first token after a context edit, beside a plain append and a stock engine",
    main,
    (
        BenchmarkRun(
            *("edit-cpu", ("edit",), ("edit", "--quick")),
            can_plot=False,
            measures=ENGINE,
            repeats="tokens of `reuse`, `repair` and `exact`",
            with_amx=False,
        ),
        BenchmarkRun(
            *("edit-cpu-amx", ("edit",), ("edit", "--quick")),
            can_plot=False,
            measures=ENGINE,
            minutes=15,
            with_amx=True,
        ),
        BenchmarkRun("edit-kinds", ("edit", "--kinds", "all"), can_plot=False, measures=ENGINE),
    ),
    takes_limit=True,
)
