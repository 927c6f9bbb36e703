"""Runs an example as its user does, in a Python that has nothing of an engine, and looks at what it prints.

`make test` makes such a Python, with the frameworks of the examples. `make examples` makes one for each of them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.clients.conversation import write_errand

ROOT = Path(__file__).parents[3]
FRAMEWORKS = ROOT / "build" / "frameworks" / "bin" / "python"
"""The Python of `requirements/frameworks.lock`. It finds the client in the checkout."""
EXAMPLES = ROOT / "examples"
HEAVY = ("vllm", "torch", "transformers", "numpy", "jsonschema", "fastapi")
"""What an example must do without."""
SECONDS = 600
_WITHOUT = """
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HEAVY:
            raise ModuleNotFoundError(f"{name} is not installed here")

HEAVY = sys.argv.pop(1).split(",")
sys.meta_path.insert(0, Absent())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_example(name: str, url: str, *arguments: str, folder: Path, python: str = sys.executable) -> str:
    """What an example prints."""
    return run_program(EXAMPLES / f"{name}.py", url, *arguments, folder=folder, python=python)


def run_program(program: Path, *arguments: str, folder: Path, python: str) -> str:
    """What a program prints. A failure of it fails the test.

    `python` may be that of another environment, which has the client installed. Ours finds it in the checkout, and
    nothing heavy.
    """
    is_ours = python == sys.executable
    finds_checkout = is_ours or python == str(FRAMEWORKS)
    command = [python, "-c", _WITHOUT, ",".join(HEAVY), str(program)] if is_ours else [python, str(program)]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environ |= {"PYTHONPATH": str(ROOT)} if finds_checkout else {}
    done = subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env=environ | {"OPENAI_API_KEY": "unused", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def engine_parts(python: str) -> list[str]:
    """What an interpreter has of an engine. Asked from outside of the checkout."""
    code = f"import importlib.util as u; print(*[name for name in {HEAVY!r} if u.find_spec(name)])"
    told = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, cwd="/").stdout.split()
    return [name for name in told if name in ("vllm", "torch")]


def check_langgraph(url: str, folder: Path, python: str) -> None:
    """Old results are cleared. The first fork comes when its session has gone on, and has one of its own.

    The second fork is the server's branch.
    """
    write_errand(folder, 1, 6, num_lines=40)
    write_errand(folder, 2, 1)
    asked = ("Please do errand 1: 6 steps", "Please do errand 2: 1 steps")
    printed = run_example("langgraph_clearing", url, *asked, folder=folder, python=python)
    assert printed.count("Errand 1 is done.") == 2
    assert printed.count("Errand 2 is done.") == 3
    prompts = [int(number) for number in re.findall(r": (\d+) tokens, \d+ computed", printed)]
    grown = prompts[2] - prompts[1]
    assert max(prompts[:7]) < prompts[0] + 4 * grown, "six results are in the prompt, and nothing was cleared"
    parts = [re.findall(r"^(\S+): \d+ tokens", part, re.MULTILINE) for part in printed.split("\n-- ")]
    (thread,), (other,), (branch,), (again,) = ([*dict.fromkeys(part)] for part in parts)
    assert other.startswith(f"{thread}@")
    assert branch not in (thread, other)
    assert branch == again


def check_agents_sdk(url: str, folder: Path, python: str, api: str) -> None:
    """Each answer of the run has a receipt, and all but the first one find the prompt before."""
    write_errand(folder, 1, 3)
    asked = ("Please do errand 1: 3 steps", "Thank you.", api)
    printed = run_example("agents_sdk_responses", url, *asked, folder=folder, python=python)
    assert "Errand 1 is done." in printed
    counts = re.findall(r"prompt (\d+): kept (\d+), moved (\d+), computed (\d+)", printed)
    assert len(counts) == 5
    assert all(int(prompt) == int(kept) + int(moved) + int(computed) for prompt, kept, moved, computed in counts)
    assert all(int(kept) > 0 for _, kept, _, _ in counts[1:])
    assert re.search(r"the session has \d+ messages", printed)
