"""`acmserve bench gpu`, and `make gpu`: all that one GPU can tell of acmserve, in 45 minutes and in order of worth.

    kernel      moves beside copies of as many bytes (`kernel/main.py`), with torch and triton alone
    holes       many holes in one forward pass, beside a step for each: answers of a small model
    fold        a fold at 4K to 128K on an 8B shape with random weights: exact, reuse, stock at vLLM's own defaults
    overhead    requests without a session, beside stock
    decode      prefill beside a decode, alone and together
    sessions    1 to 32 sessions side by side, beside stock
    fold-fp8, sessions-fp8    both once more, with KV in fp8

Each stage is kept when it is done, and a run that was cut goes on there. Where vLLM is not installed, the kernel alone
runs. `--device cpu` runs all of it with a tiny model: it proves the program, and its times mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from acmserve.bench.gpu.device import CPU, CUDA, KINDS, read_device
from acmserve.bench.gpu.stage import MINUTES, NAMES, KeptStages, code_digest, plan_lines
from acmserve.bench.gpu.suite_run import CARD_SIZES, CPU_SIZES, SuiteRun, SuiteSizes
from acmserve.bench.gpu.table import suite_lines
from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.machine import command_line, describe_machine, one_line
from acmserve.bench.harness.options import add_report_options, hand_over, minutes, positive
from acmserve.bench.harness.run_log import RUN


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench gpu`: 0 where all gates are green, 1 where one is red, 2 where there is no device."""
    options = _parser().parse_args(argv)
    device, why = read_device(options.device)
    if device is None:
        print(f"no CUDA device ({why}): run this on a GPU, or with --device cpu to try the suite", file=sys.stderr)
        return 2
    sizes = _sizes(options)
    machine = describe_machine()
    machine |= {"gpu": device.name, "cuda": device.cuda, "command": command_line(["bench", "gpu", *argv])}
    print("\n".join([one_line(machine), f"device: {device.name}", *plan_lines(options.stages)]), flush=True)
    key = {"code": code_digest(), "versions": machine["versions"], "device": device.name, "sizes": asdict(sizes)}
    run = SuiteRun(device, sizes, KeptStages(options.work, key), options.max_minutes)
    try:
        _end_after(options.max_minutes)
        run.run(options.stages)
    except KeyboardInterrupt:
        RUN.ended_by = RUN.ended_by or "SIGINT"
    report: dict[str, Any] = {"machine": machine} | run.report()
    if RUN.ended_by:
        report |= RUN.as_partial()
    elif run.failures:
        report["answers"] = RUN.answers
    return hand_over(report, suite_lines, None, options)


def _end_after(limit: float) -> None:
    """What still runs when the minutes are over is ended, and its stage is missing. Without vLLM nothing is so long."""
    if importlib.util.find_spec("vllm") is not None:
        from acmserve.bench.harness.ending import end_after

        end_after(limit)


def _sizes(options: argparse.Namespace) -> SuiteSizes:
    """Those of the device, with what was asked for."""
    sizes = CPU_SIZES if options.device == CPU else CARD_SIZES
    asked = {
        "contexts": options.contexts,
        "numbers": options.sessions,
        "session_contexts": options.session_contexts,
        "chunks": options.chunks,
        "num_repetitions": options.repetitions,
        "num_rounds": options.rounds,
        "other_gib": options.other_gib,
    }
    return replace(sizes, **{name: value for name, value in asked.items() if value is not None})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acmserve bench gpu",
        description="Moves, folds, sessions and overhead on one GPU, in order of worth, each kept when it is done. "
        "--device cpu tries the suite itself in a minute or two.",
    )
    add = parser.add_argument
    add("--device", choices=KINDS, default=CUDA, help="cuda (default), or cpu: a tiny model, and times mean nothing")
    add("--stages", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}")
    add(
        "--max-minutes",
        type=minutes,
        default=MINUTES,
        metavar="N",
        help=f"no stage begins that may take longer, and what still runs then is ended (default {MINUTES:g})",
    )
    add("--work", type=Path, default=Path("bench-gpu"), metavar="DIR", help="stages, to go on with (%(default)s)")
    add("--contexts", nargs="+", type=positive, metavar="N", help="lengths of the fold (default 4K to 128K)")
    add("--sessions", nargs="+", type=positive, metavar="N", help="side by side (default 1 4 16 32)")
    add("--session-contexts", nargs="+", type=positive, metavar="N", help="their lengths (default 2048 8192)")
    add("--chunks", nargs="+", type=positive, metavar="N", help="tokens of prefill beside a decode (128 to 2048)")
    add("--repetitions", type=positive, metavar="N", help="of every case (default 5)")
    add("--rounds", type=positive, metavar="N", help="folds under reuse in each repetition of a length (default 2)")
    add("--other-gib", type=float, metavar="G", help="an engine's memory beside weights and KV (default 4.5)")
    add_report_options(parser, plot=False)
    return parser


BENCHMARK = Benchmark(
    "gpu",
    "moves, folds, sessions and overhead on one GPU",
    main,
    takes_limit=True,
)


def _entry(argv: Sequence[str]) -> int:
    """Without vLLM there may be no httpx and psutil either, which a benchmark that starts engines needs."""
    if importlib.util.find_spec("vllm") is None:
        return main(argv)
    from acmserve.bench.harness.ending import run_to_its_end

    return run_to_its_end(BENCHMARK, argv)


if __name__ == "__main__":
    sys.exit(_entry(sys.argv[1:]))
