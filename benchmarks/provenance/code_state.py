"""Whether what was measured on a commit is about the code that is here now, by the paths that it measures.

Contents are compared. So a merge, a change that was taken back, and a commit of pages or results change nothing. Nor
does one of docstrings and comments of Python. A change that is not committed yet does.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from acmserve.bench.provenance.program import is_same_program

ROOT = Path(__file__).resolve().parents[2]
UNKNOWN = "not recorded"
_MADE = ("benchmarks/results", "docs")
CURRENT, OLDER = "current", "older than the code"


def commit_of(folder: Path) -> tuple[str | None, list[str]]:
    """Commit of the checkout of a folder, `+` behind it when files differ from it, and these files.

    None outside a checkout. A file that is new and unknown to git makes the `+` as well. Results and pages are not
    looked at, since they are made of what was measured. So a result that is new leaves the next one its commit.
    """
    git = ["git", "-C", str(folder)]
    status = ["status", "--porcelain", "-z", "--", ":/", *(f":(top,exclude){made}" for made in _MADE)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], check=False, capture_output=True, text=True)
        changes = subprocess.run([*git, *status], check=False, capture_output=True, text=True)
    except OSError:
        return None, []
    if head.returncode != 0:
        return None, []
    # With -z a renamed file has its old name as an entry of its own, which has no two letters and a blank in front.
    changed = [entry[3:] if entry[2:3] == " " else entry for entry in changes.stdout.split("\0") if entry]
    return head.stdout.strip() + ("+" if changed else ""), sorted(changed)


def find_state(commit: str | None, changed: Sequence[str] | None, paths: Sequence[str], root: Path) -> str:
    """`current` where the paths in the checkout `root` are those of the commit, else why not.

    A commit with `+` was modified: by the files `changed`, or by nobody knows which where they are None.
    """
    if not commit:
        return f"commit {UNKNOWN}"
    git, clean = ["git", "-C", str(root)], commit.removesuffix("+")
    known = subprocess.run([*git, "merge-base", "--is-ancestor", clean, "HEAD"], check=False, capture_output=True)
    if known.returncode:
        return "commit not in this history"
    if not all(_is_same_program(git, clean, root / name, name) for name in _changed_files(git, clean, paths)):
        return OLDER
    if commit != clean and (changed is None or any(_lies_in(file, paths) for file in changed)):
        return "measured on a modified tree"
    return CURRENT


def _changed_files(git: Sequence[str], commit: str, paths: Sequence[str]) -> list[str]:
    """Files below `paths` that differ from those of a commit, by their names in the checkout."""
    names = ["diff", "--name-only", "--no-renames", "--relative", "-z", commit, "--", *paths]
    found = subprocess.run([*git, *names], check=True, capture_output=True, text=True)
    return sorted(name for name in found.stdout.split("\0") if name)


def _is_same_program(git: Sequence[str], commit: str, file: Path, name: str) -> bool:
    """Whether a file that differs from that of a commit does so in its words alone."""
    if file.suffix != ".py" or not file.is_file():
        return False
    before = subprocess.run([*git, "show", f"{commit}:./{name}"], check=False, capture_output=True, text=True)
    return before.returncode == 0 and is_same_program(before.stdout, file.read_text(encoding="utf-8"))


def is_same_code(machine: Mapping[str, Any], commit: str | None, paths: Sequence[str], root: Path = ROOT) -> bool:
    """Whether what was measured on that machine counts beside what is measured now, on this commit.

    It is so where no measured path has changed between, or where the commits are called the same and are clean, or
    none. Two modified trees of one commit are the same where the same measured files are changed, and none of them was
    written since.
    """
    then, changed = machine.get("commit"), machine.get("changed")
    if (then == commit and not str(then).endswith("+")) or find_state(then, changed, paths, root) == CURRENT:
        return True
    if then != commit or changed is None or "date" not in machine:
        return False
    before, now = ({one for one in files if _lies_in(one, paths)} for files in (changed, commit_of(root)[1]))
    # The date has whole seconds.
    end = datetime.fromisoformat(machine["date"]).timestamp() + 1
    return before == now and all(_written(root / one) < end for one in now)


def _written(path: Path) -> float:
    """When a file, or any below a folder, was last written. 0 for what is gone. Python's own caches are no source."""
    files = (one for one in (path, *path.rglob("*")) if one.is_file() and one.parent.name != "__pycache__")
    return max((one.stat().st_mtime for one in files), default=0.0)


def _lies_in(file: str, paths: Iterable[str]) -> bool:
    """Git tells a folder that is new as a whole by its name and a slash."""
    is_folder = file.endswith("/")
    return any(file.startswith(f"{path}/") or (is_folder and f"{path}/".startswith(file)) for path in paths)
