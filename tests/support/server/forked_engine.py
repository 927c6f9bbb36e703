"""`acmserve` whose engine core is a fork of the server, instead of a fresh interpreter.

vLLM spawns the core on a CPU, and the core imports vLLM once more: eight seconds of CPU for each server. Here vLLM is
imported before the command line is read. `test_restart.py` has a server that users' own command starts, with a core
that is spawned.
"""

from __future__ import annotations

import multiprocessing
import sys

import vllm.v1.engine.utils as launch

from acmserve.cli import main


def fork_engines() -> None:
    """Have vLLM's launcher of engine cores fork them."""
    launch.get_mp_context = lambda: multiprocessing.get_context("fork")


if __name__ == "__main__":
    fork_engines()
    sys.exit(main())
