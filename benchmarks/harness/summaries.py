"""Texts that stand for summaries: about 250 tokens each, of the manual of the standard library, no two alike.

Summaries that are equal by chance would find each other in a cache.
"""

from __future__ import annotations

from pydoc_data.topics import topics

NUM_CHARS = 1_100

SUMMARIES = tuple(
    f"Summary {number + 1}. {topics[name][:NUM_CHARS]}"
    for number, name in enumerate(name for name in sorted(topics) if len(topics[name]) >= NUM_CHARS)
)
