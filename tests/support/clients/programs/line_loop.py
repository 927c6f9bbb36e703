"""Turns of an agent over standard input and output: `{"words": ...}` in, `{"text": ..., "cached_tokens": ...}` out.

Each program of this folder is an agent as users of a framework write it, and nothing more. It runs in the framework's
own virtual environment, which has none of our packages. What it keeps between processes is the framework's own file.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

OUTPUT, sys.stdout = sys.stdout, sys.stderr
"""What a framework prints goes to the log."""
INSTRUCTIONS = "You are a careful assistant. Use the tools, one call at a time."
MODEL = "errands"


def arguments() -> tuple[str, Path]:
    """The server's address without `/v1`, and the file in which this agent keeps its history."""
    return sys.argv[1], Path(sys.argv[2])


def run_command(command: str) -> str:
    """What a shell prints."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def loop(turn: Callable[[str], tuple[str, int | None]]) -> None:
    """Answer each line. A turn's error is its answer: the matrix shows it."""
    for line in sys.stdin:
        said: dict[str, Any]
        try:
            text, cached = turn(json.loads(line)["words"])
            said = {"text": text, "cached_tokens": cached}
        except Exception as error:  # noqa: BLE001 - what a framework raises is the answer
            said = {"text": "", "cached_tokens": None, "error": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps(said), file=OUTPUT, flush=True)
