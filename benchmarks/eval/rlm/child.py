"""The process in which a model's Python runs. It is started by `python_session.py`, imports nothing of acmserve, and is
told over two pipes what to run.

`print` and errors of the code become its output. A network is refused by name where the kernel could not take it away.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Any

MAX_OUTPUT_CHARS = 2**20
_REFUSED = ("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "ctypes.")


class Output(io.StringIO):
    """Text in memory, up to a size that nobody reads."""

    def write(self, text: str) -> int:
        if self.tell() + len(text) > MAX_OUTPUT_CHARS:
            raise BufferError(f"more than {MAX_OUTPUT_CHARS:,} characters were printed")
        return super().write(text)


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: other programs and the network are not for this code."""
    if event.startswith(_REFUSED):
        raise PermissionError(f"{event} is not allowed here")


def main(reads: int, writes: int) -> None:
    """Run what is asked until nobody asks any more."""
    asked, said = os.fdopen(reads, encoding="utf-8"), os.fdopen(writes, "w", encoding="utf-8")

    def say(value: dict[str, Any]) -> None:
        said.write(json.dumps(value) + "\n")
        said.flush()

    alone = threading.Lock()

    def llm_query_batched(prompts: Sequence[str]) -> list[str]:
        with alone:
            say({"query": [str(prompt) for prompt in prompts]})
            answers: list[str] = json.loads(asked.readline())["answers"]
        return answers

    def llm_query(prompt: str) -> str:
        return llm_query_batched([prompt])[0]

    names: dict[str, Any] = {"__name__": "__main__", "llm_query": llm_query, "llm_query_batched": llm_query_batched}
    given = {*names, "SHOW_VARS", "__builtins__"}
    names["SHOW_VARS"] = lambda: sorted(name for name in names if name not in given)
    names["context"] = json.loads(asked.readline())["context"]
    sys.addaudithook(refuse)
    say({"ready": True})
    for line in asked:
        wanted = json.loads(line)
        if "name" in wanted:
            name = wanted["name"]
            say({"value": str(names[name]) if name in names else None})
            continue
        say({"output": run(wanted["code"], names)})


def run(code: str, names: dict[str, Any]) -> str:
    """What the code printed, and the error that ended it."""
    output = Output()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            exec(compile(code, "<repl>", "exec"), names)
        except BaseException as error:  # noqa: BLE001 -- whatever the code raises is its output
            told = traceback.format_exception(error)
            return output.getvalue() + "".join([told[0], *told[2:]])
    return output.getvalue()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
