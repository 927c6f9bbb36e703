"""The end of a server that was asked to stop: one line, where libraries would print thirty about what they leaked.

    Ctrl-C, SIGTERM --> vLLM stops engine and app, sessions are saved --> `atexit` --> the process ends at once

Decision: when all that had to be closed is closed, the interpreter is not taken apart. Triton's bindings would report
every function as leaked, though the process is about to give all of it back. What others have registered to run at the
end runs before. A tracker of multiprocessing does the same for what it then removes itself, so its warning is off.
"""

from __future__ import annotations

import atexit
import os
import sys

_TRACKER = "ignore:resource_tracker:UserWarning"


class ProcessEnd:
    """Ends this process with the exit code that is set. As long as none is set it ends as any process does.

    Made before anything else is imported, so that it runs behind what others register.
    """

    def __init__(self) -> None:
        self.code: int | None = None
        given = os.environ.get("PYTHONWARNINGS")
        os.environ["PYTHONWARNINGS"] = f"{given},{_TRACKER}" if given else _TRACKER
        atexit.register(self._leave)

    def _leave(self) -> None:
        if self.code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)
