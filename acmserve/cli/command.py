"""What a command of `acmserve` is: the line that the help says of it, its flags, and who does the work.

Beside it stands the flag that every command which asks a server has.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Command:
    """`run` gets the parsed flags and gives the exit code.

    Without `add_flags` the flags belong to somebody else, vLLM or a benchmark. `run` then gets the arguments unread.
    """

    help: str
    run: Callable[[Any], int]
    description: str = ""
    add_flags: Callable[[argparse.ArgumentParser], None] | None = None


def add_api_key_flag(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--api-key`, which the environment may give as well. `what` says what the key is for."""
    variable = "ACMSERVE_API_KEY"
    parser.add_argument("--api-key", default=os.environ.get(variable), metavar="KEY", help=f"{what} (${variable})")
