"""The control of `make sanitize`: a read behind the end of a cache ends the process with the sanitizer's report."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

BEHIND_THE_END = """
import numpy as np
from acmserve import _native
cache = np.zeros(2 * 4 * 16 * 32, dtype=np.float32)
strides = dict(block_stride=2 * 16 * 32, head_stride=2 * 16 * 32)
sizes = dict(num_kv_heads=1, block_size=16, head_size=32, value_size=32, **strides)
layer = _native.Layer(base=cache.ctypes.data, dtype="float32", isa="vec", num_blocks={num_blocks}, rope=0, **sizes)
slots = [np.arange(start, start + 16) for start in ({source}, 0)]
angles = [np.ones((1, 16), dtype=np.float32)]
mover = _native.Mover([layer], [(32, True)])
mover.move(*slots, np.array([16]), np.array([3]), angles, angles, 1, [])
"""


def move_from(source: int, num_blocks: int) -> subprocess.CompletedProcess[str]:
    code = BEHIND_THE_END.format(source=source, num_blocks=num_blocks)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_move_within_the_cache_is_no_finding() -> None:
    ended = move_from(source=32, num_blocks=4)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.skipif("ACMSERVE_SANITIZED" not in os.environ, reason="the extension has no sanitizers: `make sanitize`")
def test_a_move_from_behind_the_end_is_found() -> None:
    ended = move_from(source=4000, num_blocks=1000)
    assert ended.returncode != 0
    assert "heap-buffer-overflow" in ended.stderr or "SEGV" in ended.stderr, ended.stderr
