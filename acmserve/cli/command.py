"""What a command of `acmserve` is: the line that the help says of it, its flags, and who does the work."""

from __future__ import annotations

import argparse
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
