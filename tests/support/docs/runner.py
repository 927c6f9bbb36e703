"""Runs the blocks of one page in order, as a reader would, and compares what they print with what the page shows.

Shell blocks of a page share one shell, Python blocks one interpreter, and both one empty folder. A Python block with a
`main` is a program of its own. Port 8000 stands for the server of the tests, `"smollm2"` for the model that it serves,
and `/models/llama` for the folder of a model.

A block of JSON behind one that was run shows a part of what it printed. Every field that stands there has to be in one
of the JSON documents of the output, with that value. The text "..." stands for any text. Lines of a block of text have
to be in the output.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from acmserve.models import smollm2
from tests.support.docs.pages import Block, blocks_of, read_page

PORT, MODEL, SERVED = "localhost:8000", "/models/llama", '"smollm2"'
PROGRAM = '__name__ == "__main__"'
RUN = ("bash", "python")
SHOWN = ("json", "text")
_END = "block-has-ended"
_SECONDS = 300


class BlockFailure(AssertionError):
    """A block failed, or printed something else than the page shows."""


class PageRunner:
    """The shell and the interpreter of one page. `host` is the server, without `http://`.

    `served` is the name of its model. `model` is a folder for engines that a page starts, None the bundled one. `words`
    are further ones that mean something else in a test.
    """

    def __init__(
        self,
        folder: Path,
        host: str,
        served: str = "smollm2",
        model: Path | None = None,
        words: Mapping[str, str] | None = None,
    ) -> None:
        self._folder, self._words = folder, {PORT: host, SERVED: f'"{served}"', **(words or {})}
        self._words[MODEL] = str(model or smollm2.default_folder())
        binaries = str(Path(sys.executable).parent)
        environ = os.environ | {"PATH": f"{binaries}:{os.environ['PATH']}", "VLLM_CPU_KVCACHE_SPACE": "1"}
        # An engine that a block starts lives in its process. Three processes would import vLLM three times.
        environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        self._shells = {
            "bash": _Process(["bash"], folder, environ, _BASH),
            "python": _Process([sys.executable, "-u", "-c", _PYTHON], folder, environ, "{path}\n"),
        }

    def run(self, block: Block) -> str:
        """What the block prints. Raises `BlockFailure` when it fails."""
        code = block.code
        for word, meant in self._words.items():
            code = code.replace(word, meant)
        if block.language == "python" and PROGRAM in code:
            program = self._folder / "program.py"
            program.write_text(code, encoding="utf-8")
            return self._shells["bash"].run(f"{sys.executable} {program}\n", block.line)
        return self._shells[block.language].run(code, block.line)

    @property
    def group(self) -> int:
        """The process group of the shell, in which is what it has started in the background."""
        return self._shells["bash"].pid

    def close(self) -> None:
        for shell in self._shells.values():
            shell.close()


def has_blocks(name: str) -> bool:
    """Whether a page has a block that is run."""
    return any(block.language in RUN and not block.not_run for block in blocks_of(read_page(name)))


def run_page(name: str, runner: PageRunner) -> None:
    """Run a page and close the runner. Raises `BlockFailure` where it fails or prints something else than it shows."""
    try:
        run_blocks(blocks_of(read_page(name)), runner)
    finally:
        runner.close()


def run_blocks(blocks: Iterable[Block], runner: PageRunner) -> None:
    """Run some blocks of a page. Raises what `run_page` does."""
    printed = None
    for block in blocks:
        if block.language in RUN:
            printed = None if block.not_run else runner.run(block)
        elif block.language in SHOWN and printed is not None:
            compare(block, printed)


_BASH = "source {path} > {path}.out 2> {path}.err; echo $? {end}\n"
_PYTHON = f"""
import contextlib, sys, traceback
names = {{"__name__": "page"}}
for line in sys.stdin:
    path, code = line.strip(), 0
    with open(path + ".out", "w") as out, contextlib.redirect_stdout(out):
        try:
            exec(compile(open(path).read(), path, "exec"), names)
        except BaseException:
            code = 1
            open(path + ".err", "w").write(traceback.format_exc())
    print(code, "{_END}", flush=True)
"""


class _Process:
    """A process that carries out files, one after the other, and says when each has ended."""

    def __init__(self, command: list[str], folder: Path, environ: Mapping[str, str], form: str) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._folder, self._form = folder, form
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        if command == ["bash"]:
            self._stdin.write("set -eu -o pipefail\n")

    def run(self, code: str, line: int) -> str:
        path = self._folder / f".block-{line}"
        path.write_text(code, encoding="utf-8")
        self._stdin.write(self._form.format(path=path, end=_END))
        self._stdin.flush()
        ended = self._stdout.readline()  # empty where `set -e` has ended the shell
        if ended != f"0 {_END}\n":
            said = "".join(_text(path.with_suffix(ending)) for ending in (".out", ".err"))
            raise BlockFailure(f"the block in line {line} failed:\n{code}\n{said}")
        return _text(Path(f"{path}.out"))

    def close(self) -> None:
        self._stdin.close()
        self._process.kill()
        self._process.wait(timeout=_SECONDS)
        self._stdout.close()


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def compare(shown: Block, printed: str) -> None:
    """Raise `BlockFailure` where the page shows what was not printed."""
    if shown.language == "text":
        lines = shown.code.splitlines()
        missing = [line for line in lines if not re.search(rf"(?<!\w){re.escape(line)}(?!\w)", printed)]
        if missing:
            raise BlockFailure(f"line {shown.line} shows {missing}, and this was printed:\n{printed}")
        return
    wanted = json.loads(shown.code)
    differences = [list(differing(wanted, document)) for document in documents_of(printed)]
    if [] not in differences:
        raise BlockFailure(f"line {shown.line} shows {differences or wanted}, and this was printed:\n{printed[:3000]}")


def documents_of(printed: str) -> Iterator[Any]:
    """JSON documents that stand one behind the other in an output, with or without space between them."""
    decoder, start = json.JSONDecoder(), 0
    while (start := printed.find("{", start)) >= 0:
        document, start = decoder.raw_decode(printed, start)
        yield document


def differing(shown: Any, printed: Any, path: str = "") -> Iterator[str]:
    """Where `printed` is not what `shown` says. Fields and items that `shown` has not may be there."""
    if isinstance(shown, Mapping) and isinstance(printed, Mapping):
        for key, value in shown.items():
            yield from (
                differing(value, printed[key], f"{path}.{key}") if key in printed else [f"{path}.{key} is missing"]
            )
    elif shown and isinstance(shown, list) and isinstance(printed, list) and len(printed) >= len(shown):
        for number, value in enumerate(shown):
            yield from differing(value, printed[number], f"{path}[{number}]")
    elif shown != printed and not (shown == "..." and isinstance(printed, str)):
        yield f"{path}: {shown!r} is shown, {printed!r} printed"
