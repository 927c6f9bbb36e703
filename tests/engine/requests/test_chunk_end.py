"""A shortened chunk ends with a block, where it has the end of one."""

from __future__ import annotations

import pytest

from acmserve.engine.requests.chunk_end import chunk_end


@pytest.mark.parametrize(
    ("start", "end", "expected"), [(0, 40, 32), (20, 40, 32), (32, 40, 40), (33, 40, 40), (32, 48, 48), (32, 20, 20)]
)
def test_chunk_end(start: int, end: int, expected: int) -> None:
    assert chunk_end(start, end, 16) == expected
