"""The `acmserve` command, one file for each word that it knows. Here the word is read and the command called.

Nothing heavy is imported until a command needs it, so that `acmserve --help` and a mistyped flag answer at once.

Decision: `serve`, `eval` and `bench` get their arguments unread, because vLLM, the evaluation and each benchmark own
their flags. Argparse would otherwise claim `--help` and every flag that it believes to know.

Exit codes: 0 done, 1 a check or a gate failed, 2 wrong usage or an error that names its remedy, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from acmserve import __version__
from acmserve.cli.bench import BENCH
from acmserve.cli.calibrate import CALIBRATE
from acmserve.cli.demo import DEMO
from acmserve.cli.doctor import DOCTOR
from acmserve.cli.eval import EVAL
from acmserve.cli.export import EXPORT
from acmserve.cli.installation import check_torchvision, missing_package
from acmserve.cli.model import MODEL
from acmserve.cli.process_end import ProcessEnd
from acmserve.cli.serve import SERVE
from acmserve.cli.top import TOP
from acmserve.errors import AcmError

DESCRIPTION = "Serve LLM agents whose context edits (fold, delete, restore) keep the KV cache already paid for."
EPILOG = """\
examples:
  acmserve demo                          fold and restore on a real model, with what each turn cost
  acmserve serve smollm2 --port 8000     OpenAI-compatible server with the bundled model
  acmserve serve /models/llama --fidelity reuse --max-model-len 32768
  acmserve model smollm2                 print the folder of the bundled model (prepared on first use)
  acmserve doctor /models/llama          will this machine and this model work, and if not, why
  acmserve calibrate /models/llama       how far may KV be moved on this model before answers change
  acmserve top http://localhost:8000     the sessions of a running server, and what they cost, live
  acmserve export rollout.jsonl          training samples of a recorded session, for TRL, verl or your own trainer
  acmserve eval http://localhost:8000/v1 --quick   right answers with context tools, budgets and maps, on any server
  acmserve bench edit --quick            time to first token after an edit, beside a stock engine

`acmserve COMMAND --help` says more about each command.
"""
COMMANDS = {
    "serve": SERVE,
    "top": TOP,
    "demo": DEMO,
    "model": MODEL,
    "doctor": DOCTOR,
    "calibrate": CALIBRATE,
    "export": EXPORT,
    "eval": EVAL,
    "bench": BENCH,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Errors of acmserve become one line on stderr and exit code 2.

    Without `argv` this process is the command. Then a server ends it in silence.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    end = ProcessEnd() if argv is None and arguments[:1] == ["serve"] else None
    try:
        code = _code_of(arguments)
    except SystemExit as stop:
        if end is not None and not isinstance(stop.code, str):
            end.code = stop.code or 0
        raise
    if end is not None:
        end.code = code
    return code


def _code_of(arguments: list[str]) -> int:
    try:
        return _run(arguments)
    except AcmError as error:
        return _fail(error)
    except ModuleNotFoundError as error:
        if (missing := missing_package(error)) is None:
            raise
        return _fail(missing)
    except KeyboardInterrupt:
        print("acmserve: interrupted", file=sys.stderr)
        return 130


def _run(arguments: list[str]) -> int:
    command = COMMANDS.get(arguments[0]) if arguments else None
    if command is not None and command.add_flags is None:
        check_torchvision()
        return command.run(arguments[1:])
    parsed = _parser().parse_args(arguments)
    if command is not DOCTOR:  # it has the same check, among its findings
        check_torchvision()
    run: Callable[[argparse.Namespace], int] = parsed.run
    return run(parsed)


def _fail(error: AcmError) -> int:
    print(f"acmserve: error: {' '.join(str(error).splitlines())}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acmserve",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"acmserve {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        if command.add_flags is None:
            commands.add_parser(name, help=command.help, add_help=False)
        else:
            known = commands.add_parser(name, help=command.help, description=command.description)
            command.add_flags(known)
            known.set_defaults(run=command.run)
    return parser
