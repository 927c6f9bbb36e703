"""`acmserve` whose processes are forks of the server, instead of fresh interpreters.

vLLM spawns what it starts on a CPU, and each process imports vLLM once more: eight seconds of CPU. Here vLLM is
imported before the command line is read. `test_restart.py` has a server that users' own command starts, with processes
that are spawned. In `make fleet` several API servers and engines are, too.
"""

from __future__ import annotations

import gc
import multiprocessing
import sys
from importlib import import_module
from typing import Any

import prometheus_client.values as metrics

from acmserve.cli import main

_EARLY = ("vllm.v1.engine.core", "vllm.v1.worker.cpu_worker", "vllm.entrypoints.openai.api_server")
"""What the processes would import each for itself."""


def fork_processes() -> None:
    """Have vLLM fork engine cores, API servers, and the coordinator of several engines.

    Nobody looks for garbage in what is imported: not meanwhile, a fifth of the time, nor later, in any process.
    """
    gc.disable()
    for name in _EARLY:
        import_module(name)
    gc.freeze()
    gc.enable()
    fork: Any = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method=None: fork
    # Whether processes share their counts is decided where the library is imported, and here it is imported early.
    metrics.ValueClass = metrics.get_value_class()


if __name__ == "__main__":
    fork_processes()
    sys.exit(main())
