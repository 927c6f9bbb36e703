"""How much work a call is, counted and not timed: the operations of Python that run in the product's own files.

A machine that is busy counts the same. What runs in C (a sort, a comparison of texts) is one operation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

_ROOT = str(Path(__file__).resolve().parents[2] / "acmserve")


def count_operations(run: Callable[[], object]) -> int:
    """Run it once, and count. What `run` raises is raised."""
    num = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal num
        num += event == "opcode"
        return count

    def enter(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(_ROOT):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return count

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        run()
    finally:
        sys.settrace(before)
    return num


def growth(make: Callable[[int], Callable[[], object]], size: int, factor: int = 4) -> float:
    """How many times the work of `make(size)` that of `make(factor * size)` is: `factor` where it is linear."""
    return count_operations(make(factor * size)) / count_operations(make(size))
