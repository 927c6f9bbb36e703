"""An engine core ends when the process is gone that started it. vLLM's own waits for requests for ever.

    API server   --starts-->  engine core        killed: nobody closes anything
                              watch  ......      wakes up, and asks its own process to end

An engine without a server holds its KV cache, on a GPU all of it, and the next start finds no memory. Knows processes
alone. A process that is not vLLM's own, in which somebody embeds an engine, is left alone.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

ENGINE_CORE = "EngineCore"
"""How vLLM names the processes of its engines (vllm/v1/engine/utils.py)."""
GRACE_SECONDS = 30.0
"""How long the process has to end as it was asked to, before it is ended."""


def end_with_parent() -> None:
    """Watch the process that started this one, in a thread of its own."""
    parent = multiprocessing.parent_process()
    if parent is not None and multiprocessing.current_process().name.startswith(ENGINE_CORE):
        threading.Thread(target=_end_after, args=(parent,), name="acmserve parent watch", daemon=True).start()


def _end_after(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)
