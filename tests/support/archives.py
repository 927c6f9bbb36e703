"""Builds archives of the tree as pip does, in a copy of what git tracks, without network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def copy_tracked(folder: Path) -> Path:
    """The tracked files as they are now, in a folder that is there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if os.path.lexists(ROOT / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def build(hook: str, source: Path, target: Path, **environment: str) -> Path:
    """The one archive that a hook of the build backend makes."""
    done = run_hook(f"{hook}({str(target)!r})", source, **environment)
    assert done.returncode == 0, done.stderr[-2000:]
    (made,) = target.iterdir()
    return made


def run_hook(call: str, source: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The process of a call of the build backend."""
    code = f"import setuptools.build_meta as backend; backend.{call}"
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=source, env=os.environ | environment, capture_output=True, text=True, check=False
    )
