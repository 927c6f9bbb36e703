"""`acmserve bench edit`: time to first token on the turn after a context edit, as a table and as JSON.

Two engines on the same machine, one with acmserve and one without, take turns; only one computes at a time. The table
of the README (`cases.py`, `run.py`) is the default. `--kinds` and `--sweep` measure every kind of edit (`kinds.py`,
`cells.py`).

The gate: `exact` after the edit gives the stock engine's first token and moved nothing, every receipt sums to its
prompt, and under `reuse` nine tenths of the text behind the edit came along. When it is red the speed is worthless: no
ratio is printed and the exit code is 1. A missed target is called missed and leaves the exit code 0, because times
depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acmserve.bench.edit import cells as edit_cells
from acmserve.bench.edit import plot as edit_plot
from acmserve.bench.edit.cases import EditSizes, Tokens, plan_repetition
from acmserve.bench.edit.kinds import KINDS, POSITIONS
from acmserve.bench.edit.run import (
    APPEND,
    APPEND_TWO,
    CASES,
    EXACT,
    FOLD,
    STOCK,
    TWO_HOLES,
    EditMeasurement,
    run_repetition,
)
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.engine_process import EngineProcess
from acmserve.bench.harness.llama_cpp import NOT_FOUND, LlamaProcess, find_llama_server
from acmserve.bench.harness.machine import describe_machine, one_line
from acmserve.bench.harness.options import add_report_options, as_gate, as_json, positive, progress
from acmserve.errors import AcmError

TARGETS = ((FOLD, APPEND, 1.25), (TWO_HOLES, APPEND_TWO, 1.5), (FOLD, STOCK, 1 / 8))
MIN_CONTEXT, MAX_CONTEXT = 500, 7000
_LLAMA_WINDOW = 8192
# Sizes and positions by whether it is a sweep, and whether it has to be quick.
_PLACES = {
    (False, False): ((5500,), ("front",)),
    (False, True): ((3000,), ("front",)),
    (True, False): ((1500, 3000, 6000), POSITIONS),
    (True, True): ((1500, 3000), ("front", "back")),
}
_Draw = Callable[[dict[str, Any], str, Path], str | None]


@dataclass(frozen=True, slots=True)
class EditOutcome:
    """What was measured: the JSON report, the table, and how to draw it (None: a red gate leaves nothing to draw)."""

    report: dict[str, Any]
    table: list[str]
    draw: _Draw | None


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench edit`; 0 when the gate is green, 1 when it is red."""
    options = _options(argv)
    folder = _model_folder(options.model)
    text = _text(folder)
    machine = describe_machine()
    print(f"{one_line(machine)}, {folder.name}", flush=True)
    with _engines(folder) as engines:
        outcome = _kinds(*engines, text, options) if options.kinds else _readme(*engines, text, options)
    print("\n".join(outcome.table))
    report = outcome.report | {"machine": machine, "model": folder.name}
    if options.json is not None:
        options.json.write_text(as_json(report), encoding="utf-8")
    if options.plot is not None and outcome.draw is not None:
        said = outcome.draw(report, one_line(machine), options.plot)
        print(said or f"plot: {options.plot}")
    return 0 if report["gate"]["green"] else 1


@contextmanager
def _engines(folder: Path) -> Iterator[tuple[EngineProcess, EngineProcess]]:
    """Ours and the stock engine, started together."""
    with EngineProcess(folder, with_acmserve=True) as ours, EngineProcess(folder, with_acmserve=False) as stock:
        _say("starting two engines (about a minute)")
        ours.wait_ready()
        stock.wait_ready()
        yield ours, stock


def _readme(ours: EngineProcess, stock: EngineProcess, text: Tokens, options: argparse.Namespace) -> EditOutcome:
    """The table of the README: append, fold, two holes, exact and stock at one size."""
    sizes, num = EditSizes(), 2 if options.quick else options.repetitions or 5
    print(
        f"Time to first token after a context edit: P={sizes.prefix} F={sizes.folded} S={sizes.suffix} "
        f"M={sizes.marker} N={sizes.new} tokens, medians of {num} repetitions of {sizes.rounds} rounds.",
        flush=True,
    )
    measured = EditMeasurement()
    _say("warm-up, not counted")
    run_repetition(ours, stock, plan_repetition(text, 0, sizes), EditMeasurement())
    for number in range(1, num + 1):
        _say(f"repetition {number} of {num}")
        run_repetition(ours, stock, plan_repetition(text, number, sizes), measured)
    return EditOutcome(as_report(measured, sizes), as_table(measured), None if measured.failures else _draw_readme)


def _kinds(ours: EngineProcess, stock: EngineProcess, text: Tokens, options: argparse.Namespace) -> EditOutcome:
    """Every kind of edit at every size and position that was asked for."""
    num = 1 if options.quick else options.repetitions or 3
    cells = edit_cells.make_cells(options.kinds, options.sizes, options.positions)
    print(f"Time to first token by kind of edit: {len(cells)} cells, medians of {num} repetitions.", flush=True)
    warm_up = edit_cells.make_cells(["fold"], [MIN_CONTEXT], ["front"])
    with ExitStack() as stack:
        llama = _start_llama(options, stack)
        _say("warm-up, not counted")
        edit_cells.run_cells(ours, stock, warm_up, text, [0], _say, llama)
        edit_cells.run_cells(ours, stock, cells, text, range(1, num + 1), _say, llama)
    report = edit_cells.as_report(cells)
    return EditOutcome(report, edit_cells.as_table(report), edit_plot.draw_cells)


def _start_llama(options: argparse.Namespace, stack: ExitStack) -> LlamaProcess | None:
    """llama.cpp's server on the GGUF of the model; None, and a line that says why, where it cannot be had."""
    server = find_llama_server(options.llama_server)
    if server is None or options.model is not None:
        _say(f"llama.cpp is left out: {NOT_FOUND if server is None else 'only the GGUF of SmolLM2 is known'}")
        return None
    from acmserve.models.smollm2 import MODEL

    gguf, num_threads = MODEL.take_gguf(progress=_say), len(os.sched_getaffinity(0))
    llama = stack.enter_context(LlamaProcess(server, gguf, _LLAMA_WINDOW, num_threads))
    llama.wait_ready()
    return llama


def as_table(measured: EditMeasurement) -> list[str]:
    """Median, fastest and slowest of each case with its last receipt; then the ratios, or why there are none."""
    rows = ["", f"{'':<20}{'median':>9}{'min':>9}{'max':>9}{'kept':>8}{'moved':>8}{'computed':>10}"]
    for case in CASES:
        seconds = measured.seconds[case]
        times = "".join(f"{value * 1000:>6.0f} ms" for value in (measured.median(case), min(seconds), max(seconds)))
        receipt = measured.receipts.get(case)
        counts = (
            f"{receipt['kept_tokens']:>8,}{receipt['moved_tokens']:>8,}{receipt['computed_tokens']:>10,}"
            if receipt
            else ""
        )
        rows.append(f"{case:<20}{times}{counts}")
    rows.append("")
    if measured.failures:
        return [*rows, "GATE RED, so no ratio is given:", *(f"  {failure}" for failure in measured.failures)]
    rows.append("gate green: exact gives the stock engine's first token, receipts add up, the suffix was moved")
    for case, base, target in TARGETS:
        ratio = measured.median(case) / measured.median(base)
        verdict = "met" if ratio <= target else "missed"
        rows.append(f"{case} / {base}: {ratio:.3f} (target {target:.3f} or less: {verdict})")
    num = len(measured.seconds[STOCK])
    rows.append(f"first token under reuse equals exact: {measured.num_reuse_agrees} of {num}")
    return rows


def as_report(measured: EditMeasurement, sizes: EditSizes) -> dict[str, Any]:
    """JSON-ready; `ratios` is empty when the gate is red."""
    ratios = [
        {"case": case, "base": base, "ratio": measured.median(case) / measured.median(base), "target": target}
        for case, base, target in TARGETS
    ]
    return {
        "sizes": sizes.as_dict(),
        "gate": as_gate(measured.failures),
        "seconds_to_first_token": measured.seconds,
        "medians": {case: measured.median(case) for case in CASES},
        "receipts": measured.receipts,
        "ratios": [] if measured.failures else ratios,
        "reuse_first_token_agrees": measured.num_reuse_agrees,
    }


def _draw_readme(report: dict[str, Any], title: str, path: Path) -> str | None:
    """The default table as cells of one size, so that one drawing serves all."""
    seconds, sizes = report["seconds_to_first_token"], report["sizes"]
    size = sizes["prefix"] + sizes["folded"] + sizes["suffix"]
    kinds = {
        "fold": {"reuse": FOLD, "append": APPEND, "exact": EXACT, "stock": STOCK},
        "two-holes": {"reuse": TWO_HOLES, "append": APPEND_TWO},
    }
    place = {"context_tokens": size, "position": "front", "green": True}
    rows = [
        {"kind": kind, "seconds_to_first_token": {name: seconds[case] for name, case in cases.items()}, **place}
        for kind, cases in kinds.items()
    ]
    series = [name for name in edit_cells.SERIES if name in kinds["fold"]]
    return edit_plot.draw_cells({"cells": rows, "series": series}, title, path)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    """The parsed options, with the kinds, sizes and positions that they stand for."""
    parser = argparse.ArgumentParser(
        prog="acmserve bench edit",
        description="Time to first token on the turn after a context edit, beside a plain append on the same engine "
        "and a stock engine on the same machine. Without further options the table of the README: a fold and two "
        "folds, five to ten minutes on two cores (--quick: two). Leave the machine alone meanwhile.",
        epilog="`--kinds all` takes every kind of edit at one size (6 minutes), `--sweep` at three sizes and positions "
        "(half an hour).",
    )
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument(
        "--kinds", nargs="+", choices=["all", *KINDS], metavar="KIND", help=f"all, or some of: {', '.join(KINDS)}"
    )
    modes.add_argument("--sweep", action="store_true", help="all kinds at several sizes and positions")
    parser.add_argument(
        "--sizes", nargs="+", type=_size, metavar="N", help="tokens of context (default 5500; a sweep: 1500 3000 6000)"
    )
    parser.add_argument(
        "--positions", nargs="+", choices=POSITIONS, help="where the edit stands (default front; a sweep: all three)"
    )
    parser.add_argument("--model", type=Path, metavar="DIR", help="a Hugging Face folder instead of SmolLM2")
    parser.add_argument(
        "--llama-server", type=Path, metavar="PATH", help="llama.cpp's server, of kinds and sweep (default: on PATH)"
    )
    parser.add_argument("--repetitions", type=positive, metavar="N", help="median of N (default 5; kinds and sweep 3)")
    add_report_options(parser, quick="two repetitions, of the other modes one of less: no result to quote")
    options = parser.parse_args(argv)
    if (options.sizes or options.positions) and not (options.kinds or options.sweep):
        parser.error("--sizes and --positions go with --kinds or --sweep")
    if options.llama_server and not (options.kinds or options.sweep):
        parser.error("--llama-server goes with --kinds or --sweep: the table of the README does not ask llama.cpp")
    if options.sweep or options.kinds == ["all"]:
        options.kinds = list(KINDS)
    sizes, positions = _PLACES[options.sweep, options.quick]
    options.sizes, options.positions = options.sizes or sizes, options.positions or positions
    return options


def _size(text: str) -> int:
    if not text.isdecimal() or not MIN_CONTEXT <= int(text) <= MAX_CONTEXT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens from {MIN_CONTEXT} to {MAX_CONTEXT}")
    return int(text)


def _model_folder(model: Path | None) -> Path:
    if model is None:
        from acmserve.models.smollm2 import prepare

        return prepare(progress=_say)
    if not (model / "config.json").is_file():
        raise AcmError(f"{model} is not a Hugging Face folder (no config.json in it); name one that is")
    return model.absolute()


def _text(folder: Path) -> Tokens:
    """Real text in the model's tokens: the demo's conversation, then the sources of the benchmarks."""
    from transformers import AutoTokenizer

    from acmserve.bench.demo.conversation import load

    texts = [message["content"] for message in load().messages]
    texts += [file.read_text(encoding="utf-8") for file in sorted(Path(__file__).parents[1].rglob("*.py"))]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return tuple(tokenizer("\n\n".join(texts), add_special_tokens=False, verbose=False).input_ids)


def _say(line: str) -> None:
    progress(f"... {line}")


BENCHMARK = Benchmark(
    "edit",
    "time to first token after a context edit, beside a plain append and a stock engine",
    main,
    (
        BenchmarkRun("edit", ("edit",), is_quick=True),
        BenchmarkRun("edit-kinds", ("edit", "--kinds", "all")),
        BenchmarkRun("edit-sweep", ("edit", "--sweep")),
    ),
)
