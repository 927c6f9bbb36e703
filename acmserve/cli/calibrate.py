"""`acmserve calibrate`: what moves do to the answers of the user's own model, and how bold `auto` may be on it."""

from __future__ import annotations

import argparse
from pathlib import Path

from acmserve.cli.command import Command

_NUM_CASES = 8


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 2: one half of the edits judges the other")
    return int(text)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a Hugging Face folder, or smollm2 or gemma3")
    parser.add_argument(
        "--transcripts",
        type=Path,
        metavar="FILE",
        help='conversations of your own, which are edited too: JSON lines of {"messages": [...]}',
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("calibration.json"),
        metavar="FILE",
        help="for `acmserve serve --calibration` (default %(default)s)",
    )
    parser.add_argument(
        "--cases",
        type=_number,
        default=_NUM_CASES,
        metavar="N",
        help="edits of each of nine kinds (default %(default)s); more make intervals narrower and take longer",
    )


def _run(parsed: argparse.Namespace) -> int:
    from acmserve.bench.calibrate.main import calibrate

    return calibrate(parsed.model, parsed.cases, parsed.transcripts, parsed.out)


CALIBRATE = Command(
    "measure what moved KV does to the answers of your model, and how bold `auto` may be on it",
    _run,
    "Edits generic texts, and your conversations, as agents do. On your model each edited prompt is served exactly, "
    "with moved KV, and repaired. Prints a verdict with intervals, and writes the level that `auto` is served at.",
    _add_flags,
)
