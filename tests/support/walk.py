"""Which files of the product a call walks through, and how often a call leaves one file for another.

    handler.py -> budget.py -> budget.py -> plan.py      3 files, 2 crossings

A crossing is a call whose caller stands in another file, both within `acmserve/`. A generator counts whenever it goes
on, since the reader has to go there, too. Returns are not counted. Code that was generated (`__init__` of a dataclass)
and code of other packages have no file here. So calls from there and into there are no crossings.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

_ROOT = Path(__file__).resolve().parents[2] / "acmserve"


@dataclass(frozen=True, slots=True)
class Walk:
    """`files` are those entered, as paths in the product. `ways` counts the crossings by (caller, callee)."""

    files: frozenset[str]
    ways: Counter[tuple[str, str]]

    @property
    def crossings(self) -> int:
        return self.ways.total()

    def into(self, file: str) -> int:
        """Crossings into one file."""
        return sum(num for (_, callee), num in self.ways.items() if callee == file)

    def __str__(self) -> str:
        ways = "\n".join(f"{num:6} {caller} -> {callee}" for (caller, callee), num in self.ways.most_common(40))
        return f"{len(self.files)} files, {self.crossings} crossings\n{ways}"


def count_walk(run: Callable[[], object]) -> Walk:
    """Run it once, and say where it went. What `run` raises is raised."""
    names: dict[CodeType, str | None] = {}
    files: set[str] = set()
    ways: Counter[tuple[str, str]] = Counter()

    def file_of(frame: FrameType | None) -> str | None:
        if frame is None:
            return None
        code = frame.f_code
        if code not in names:
            path = Path(code.co_filename)
            names[code] = path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else None
        return names[code]

    def hook(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or (callee := file_of(frame)) is None:
            return
        files.add(callee)
        caller = file_of(frame.f_back)
        if caller is not None and caller != callee:
            ways[caller, callee] += 1

    before = sys.getprofile()
    sys.setprofile(hook)
    try:
        run()
    finally:
        sys.setprofile(before)
    return Walk(frozenset(files), ways)
