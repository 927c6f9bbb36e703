"""A text in parts, as results of calls, and what no budget may take of it."""

from __future__ import annotations

import pytest

from acmserve.bench.eval.reads import NUM_PARTS, PART_TOKENS, as_reads, split, without_reads
from acmserve.bench.eval.tasks.registry import TASKS, make_samples


@pytest.mark.parametrize("text", ["one two\nthree four five " * 40, "x" * 1000, "a b\n" * 30_000, "short", ""])
def test_parts_make_up_the_text(text: str) -> None:
    parts = split(text)
    assert "".join(parts) == text
    assert all(parts)
    assert len(parts) >= min(NUM_PARTS, len(text))
    assert max(map(len, parts), default=0) <= 1.1 * max(4 * PART_TOKENS, len(text) / NUM_PARTS)
    if "\n" in text:
        assert all(part.endswith(("\n", " ")) for part in parts)


def test_the_question_and_what_stands_around_the_reads_stays() -> None:
    (sample,) = make_samples(TASKS["babilong"], 1, 0, {"tokens": (300,)})
    reads = as_reads(sample)
    assert [one["role"] for one in without_reads(sample)] == ["user", "assistant", "user"]
    assert without_reads(sample)[-1]["content"] == sample.question
    assert len(reads) == 3 + 2 * NUM_PARTS
    (spoken,) = make_samples(TASKS["mrcr"], 1, 0, {"needles": (2,), "tokens": (300,)})
    assert as_reads(spoken) == spoken.messages()
    assert without_reads(spoken) == [{"role": "user", "content": spoken.question}]
