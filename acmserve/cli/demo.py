"""`acmserve demo`: a recorded conversation on the real engine, with a fold and a restore."""

from __future__ import annotations

import argparse
from pathlib import Path

from acmserve.cli.command import Command


def _add_flags(demo: argparse.ArgumentParser) -> None:
    demo.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers, machine and versions to FILE")
    demo.add_argument("--model", type=Path, metavar="DIR", help="a Hugging Face folder instead of the bundled SmolLM2")


def _run(parsed: argparse.Namespace) -> int:
    from acmserve.bench.demo.run import run_demo

    run_demo(model=parsed.model, json_file=parsed.json)
    return 0


DEMO = Command(
    "replay an agent conversation, fold a tool result, go on, restore it; print what each turn cost",
    _run,
    "Replays a bundled agent conversation on the real engine, folds a tool result in its middle, goes on and restores "
    "it: under the fidelities reuse and exact, beside stock vLLM and a plain append. Takes a few minutes on two cores.",
    _add_flags,
)
