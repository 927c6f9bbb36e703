"""Where a shortened chunk of a prefill ends: with a block, so that the next one begins with a block.

blocks   |....|....|....|
chunk       [ start          end )        is shortened to
            [ start     )
"""

from __future__ import annotations


def chunk_end(start: int, end: int, block_size: int) -> int:
    """The last end of a block in the chunk `[start, end)`, in tokens. `end` where the chunk has none behind `start`."""
    whole = end // block_size * block_size
    return whole if whole > start else end
