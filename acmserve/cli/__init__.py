"""The `acmserve` command: which words it knows, and who does the work.

It imports nothing heavy until a command needs it, so that `acmserve --help` and a mistyped flag answer at once.
`serve` and `bench` hand their arguments on unread, because vLLM and each benchmark own their flags; argparse would
otherwise claim `--help` and every flag it believes to know.

Exit codes: 0 done, 1 a check or a gate failed, 2 wrong usage or an error that names its remedy, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from acmserve import __version__
from acmserve.errors import AcmError

Command = Callable[[list[str]], int]

DESCRIPTION = "Serve LLM agents whose context edits (fold, delete, restore) keep the KV cache already paid for."
EPILOG = """\
examples:
  acmserve demo                          fold and restore on a real model, with what each turn cost
  acmserve serve smollm2 --port 8000     OpenAI-compatible server with the bundled model
  acmserve serve /models/llama --fidelity reuse --max-model-len 32768
  acmserve model smollm2                 print the folder of the bundled model (prepared on first use)
  acmserve doctor /models/llama          will this machine and this model work, and if not, why
  acmserve bench edit --quick            time to first token after an edit, beside a stock engine

`acmserve COMMAND --help` tells more about each command.
"""
BENCH_HELP = """\
usage: acmserve bench NAME [options]

{}

`acmserve bench edit --help` tells its options. Every benchmark checks correctness first and reports no speed-up
when that check fails (exit code 1).
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; errors of acmserve become one line on stderr and exit code 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["serve"]:
            return _call("acmserve.server.app.serve", arguments[1:])
        if arguments[:1] == ["bench"]:
            return _bench(arguments[1:])
        parsed = _parser().parse_args(arguments)
        run: Callable[[argparse.Namespace], int] = parsed.run
        return run(parsed)
    except AcmError as error:
        print(f"acmserve: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("acmserve: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acmserve",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"acmserve {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    commands.add_parser("serve", help="start the OpenAI-compatible server with context edits on", add_help=False)
    _add_demo(commands)
    _add_model(commands)
    _add_doctor(commands)
    commands.add_parser("bench", help="measure on this machine; `acmserve bench` lists what", add_help=False)
    return parser


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="replay an agent conversation, fold a tool result, go on, restore it; print what each turn cost",
        description="Replays a bundled agent conversation on the real engine, folds a tool result in its middle, "
        "goes on and restores it, under both fidelities and beside a stock engine. Takes a few minutes on two cores.",
    )
    demo.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers, machine and versions to FILE")
    demo.add_argument("--model", type=Path, metavar="DIR", help="a Hugging Face folder instead of the bundled SmolLM2")
    demo.set_defaults(run=_demo)


def _add_model(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    model = commands.add_parser(
        "model",
        help="print the folder of a bundled model, preparing it first where needed",
        description="Prints the folder of the prepared model as the only line on stdout, so that it can be used as "
        "MODEL=$(acmserve model smollm2). The first call downloads it from the package registry and converts it, below "
        "$ACMSERVE_HOME or ~/.cache: 93 MB become 540 MB on disk (gemma3: 238 MB become 1.1 GB).",
    )
    model.add_argument(
        "name",
        choices=["smollm2", "gemma3"],
        help="smollm2: SmolLM2-135M-Instruct, 8,192 tokens, Apache-2.0. gemma3: Gemma 3 270M, no chat model, under the "
        "Gemma terms of use; its sliding windows allow no moves, so it is for benchmarks",
    )
    model.add_argument("--folder", type=Path, metavar="DIR", help="prepare it in DIR instead of the cache")
    model.set_defaults(run=_model)


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="check vLLM, hooks, kernels and, with MODEL, whether its KV may be moved",
        description="Tells which vLLM is installed, whether acmserve's hooks fit it, which kernels are built and, with "
        "MODEL, whether its positions and attention allow moves, and if not, why. A model whose KV may not be moved is "
        "no defect: it is served exactly. Exit code 1 when something is broken.",
    )
    doctor.add_argument("model", nargs="?", metavar="MODEL", help="a Hugging Face folder, or the word smollm2")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.set_defaults(run=_doctor)


def _demo(parsed: argparse.Namespace) -> int:
    from acmserve.bench.demo.run import run_demo

    run_demo(model=parsed.model, json_file=parsed.json)
    return 0


def _model(parsed: argparse.Namespace) -> int:
    from acmserve.models import gemma3, smollm2

    prepare = {"smollm2": smollm2.prepare, "gemma3": gemma3.prepare}[parsed.name]
    print(prepare(parsed.folder, progress=say))
    return 0


def _doctor(parsed: argparse.Namespace) -> int:
    from acmserve.cli.doctor import examine

    report = examine(parsed.model)
    print(report.as_json() if parsed.json else report.as_text())
    return 1 if report.is_broken else 0


def _bench(arguments: list[str]) -> int:
    from acmserve.bench.harness.benchmark import find_benchmarks

    known = find_benchmarks()
    name = arguments[0] if arguments else "--help"
    if name in {"-h", "--help"}:
        print(BENCH_HELP.format("\n".join(f"  {one.name:<12} {one.help}" for one in known.values())), end="")
        return 0
    if name not in known:
        raise AcmError(f"unknown benchmark {name!r}; choose one of {', '.join(known)}")
    return known[name].load().run(arguments[1:])


def _call(module: str, arguments: list[str]) -> int:
    run: Command = importlib.import_module(module).main
    return run(arguments)


def say(line: str) -> None:
    """One line of progress, on stderr so that stdout stays machine-readable."""
    print(line, file=sys.stderr, flush=True)
