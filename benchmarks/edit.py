"""`acmserve bench edit`: time to first token on the turn after a context edit, as a table and as JSON.

Two engines on the same machine, one with acmserve and one without, take turns; only one computes at a time. What is
asked is in `edit_plan.py`, what is measured and checked in `edit_run.py`.

The gate: `exact` after the fold gives the stock engine's first token and moved nothing, every receipt sums to its
prompt, and the folds under `reuse` moved at least nine tenths of the suffix. When it is red the speed is worthless: no
ratio is printed and the exit code is 1. A missed target is called missed and leaves the exit code 0, because times
depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.edit_plan import Sizes, Tokens, plan_repetition
from acmserve.bench.edit_run import APPEND, APPEND_TWO, CASES, FOLD, STOCK, TWO_HOLES, Measured, run_repetition
from acmserve.bench.engine_process import EngineProcess
from acmserve.bench.machine import describe_machine, one_line
from acmserve.errors import AcmError

TARGETS = ((FOLD, APPEND, 1.25), (TWO_HOLES, APPEND_TWO, 1.5), (FOLD, STOCK, 1 / 8))


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench edit`; 0 when the gate is green, 1 when it is red."""
    options = _parser().parse_args(argv)
    sizes, num_repetitions = Sizes(), 2 if options.quick else options.repetitions
    folder = _model_folder(options.model)
    text = _text(folder)
    machine = describe_machine()
    print(
        f"Time to first token after a context edit: P={sizes.prefix} F={sizes.folded} S={sizes.suffix} "
        f"M={sizes.marker} N={sizes.new} tokens, medians of {num_repetitions} repetitions of {sizes.rounds} rounds.\n"
        f"{one_line(machine)}, {folder.name}",
        flush=True,
    )
    measured = Measured()
    with EngineProcess(folder, with_acmserve=True) as ours, EngineProcess(folder, with_acmserve=False) as stock:
        _progress("starting two engines (about a minute)")
        ours.wait_ready()
        stock.wait_ready()
        _progress("warm-up, not counted")
        run_repetition(ours, stock, plan_repetition(text, 0, sizes), Measured())
        for number in range(1, num_repetitions + 1):
            _progress(f"repetition {number} of {num_repetitions}")
            run_repetition(ours, stock, plan_repetition(text, number, sizes), measured)
    print("\n".join(as_table(measured)))
    if options.json is not None:
        report = as_report(measured, sizes) | {"machine": machine, "model": folder.name}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if measured.failures else 0


def as_table(measured: Measured) -> list[str]:
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


def as_report(measured: Measured, sizes: Sizes) -> dict[str, Any]:
    """JSON-ready; `ratios` is empty when the gate is red."""
    ratios = [
        {"case": case, "base": base, "ratio": measured.median(case) / measured.median(base), "target": target}
        for case, base, target in TARGETS
    ]
    return {
        "sizes": sizes.as_dict(),
        "gate": {"green": not measured.failures, "failures": measured.failures},
        "seconds_to_first_token": measured.seconds,
        "medians": {case: measured.median(case) for case in CASES},
        "receipts": measured.receipts,
        "ratios": [] if measured.failures else ratios,
        "reuse_first_token_agrees": measured.num_reuse_agrees,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acmserve bench edit",
        description="Time to first token after a fold and after two folds, beside a plain append on the same engine "
        "and a stock engine on the same machine. Takes five to ten minutes on two cores; leave the machine alone.",
    )
    parser.add_argument("--model", type=Path, metavar="DIR", help="a Hugging Face folder instead of SmolLM2")
    parser.add_argument("--repetitions", type=_positive, default=5, metavar="N", help="median of N (default 5)")
    parser.add_argument("--quick", action="store_true", help="two repetitions: a smoke test, not a result to quote")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write numbers, machine, versions and commit")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _model_folder(model: Path | None) -> Path:
    if model is None:
        from acmserve.models.smollm2 import prepare

        return prepare(progress=_progress)
    if not (model / "config.json").is_file():
        raise AcmError(f"{model} is not a Hugging Face folder (no config.json in it); name one that is")
    return model.absolute()


def _text(folder: Path) -> Tokens:
    """Real text in the model's tokens: the demo's conversation, then the sources of the benchmarks."""
    from transformers import AutoTokenizer

    from acmserve.demo.conversation import load

    texts = [message["content"] for message in load().messages]
    texts += [file.read_text(encoding="utf-8") for file in sorted(Path(__file__).parent.glob("*.py"))]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return tuple(tokenizer("\n\n".join(texts), add_special_tokens=False, verbose=False).input_ids)


def _progress(line: str) -> None:
    print(f"... {line}", file=sys.stderr, flush=True)
