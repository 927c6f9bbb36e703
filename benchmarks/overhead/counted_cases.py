"""`python -m acmserve.bench.overhead.counted_cases PLAN`: several programs in forks of one process, for Valgrind.

    import vLLM --fork--> PROGRAM ARGUMENTS     counts, prints
                --fork--> PROGRAM ARGUMENTS

Under Valgrind the imports take minutes, and every fork has them behind it. So each case begins in the same state, and
no case sees what another one did. `PLAN` is JSON: `imports`, and `cases`, a list of words each. Prints a line
for each case when it ends: `ENDED`, and as JSON its process and the last line of what it printed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

ENDED = "counted: "
_FAILED = 1


def main(imports: Sequence[str], cases: Sequence[Sequence[str]]) -> int:
    """One case after the other. 1 at the first one that fails."""
    for name in imports:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        for number, (program, *arguments) in enumerate(cases):
            file = Path(folder) / f"{number}.txt"
            process_id = os.fork()
            if not process_id:
                _run(program, arguments, file)
            _, status = os.waitpid(process_id, 0)
            if status:
                return _FAILED
            said = file.read_text(encoding="utf-8").splitlines()[-1]
            print(ENDED + json.dumps({"process": process_id, "said": json.loads(said)}), flush=True)
    return 0


def _run(program: str, arguments: Sequence[str], file: Path) -> None:
    """In the fork: what the program prints goes to the file. Does not return."""
    status = _FAILED
    try:
        with file.open("w", encoding="utf-8") as sys.stdout:
            importlib.import_module(program).main(*arguments)
        status = 0
    finally:
        if status:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main(**json.loads(sys.argv[1])))
