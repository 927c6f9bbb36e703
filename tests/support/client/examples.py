"""Runs an example as its user does, in a Python that has nothing of an engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
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
    command = [python, "-c", _WITHOUT, ",".join(HEAVY), str(program)] if is_ours else [python, str(program)]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environ |= {"PYTHONPATH": str(ROOT)} if is_ours else {}
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
