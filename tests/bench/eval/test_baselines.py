"""Retrieval and memory without a server of ours: what is found, what is trimmed."""

from __future__ import annotations

import math

import pytest

from acmserve.bench.eval.baselines.memagent import parts, trimmed
from acmserve.bench.eval.baselines.retrieval import K1, B, bm25, chunks, retrieve
from acmserve.bench.eval.baselines.way_limits import PAPERS, WayLimits


def test_bm25_ranks_by_its_formula() -> None:
    documents = ["the fox jumps", "the dog sleeps and sleeps", "a bird"]
    ranks = bm25(documents, "dog sleeps")
    assert ranks[0] == ranks[2] == 0
    rare = math.log(1 + 2.5 / 1.5)
    length = 1 - B + B * 5 / (10 / 3)
    expected = rare * (K1 + 1) / (1 + K1 * length) + rare * 2 * (K1 + 1) / (2 + K1 * length)
    assert ranks[1] == pytest.approx(expected)


def test_chunks_hold_whole_sentences_and_nothing_is_lost() -> None:
    text = " ".join(f"Sentence {number} has words." for number in range(200)) + " " + "long " * 450
    found = chunks(text)
    assert max(len(chunk.split()) for chunk in found) <= 200
    assert " ".join(found).split() == text.split()
    assert found[0].endswith("words.")


def test_the_best_passages_come_first_until_there_are_enough() -> None:
    hay = [f"Filler {number} tells of nothing at all here." for number in range(2000)]
    text = " ".join([*hay[:1500], "The locker of Ada holds quartz.", *hay[1500:]])
    found = retrieve(text, "What does the locker of Ada hold?")
    assert "quartz" in found[0]
    assert 1_200 < sum(len(chunk.split()) for chunk in found) <= 1_500
    assert retrieve("one two", "nothing") == ["one two"]


def test_chunks_are_as_small_as_what_is_retrieved_of_them_and_hold_a_sentence() -> None:
    assert [WayLimits(retrieved=num).chunk for num in (1_500, 750, 60, 10)] == [200, 100, 20, 10]
    text = " ".join(f"The locker {number} holds nothing." for number in range(60))
    found = retrieve(text, "What does the locker 31 hold?", WayLimits(retrieved=60))
    assert "locker 31 " in found[0]
    assert [len(chunk.split()) for chunk in found] == [20, 20, 20]


def test_the_middle_of_a_long_text_is_trimmed() -> None:
    text = "a" * 300_000 + "b" * 300_000
    assert trimmed(text) == "a" * 240_000 + "b" * 240_000
    assert trimmed("short") == "short"
    pieces = parts("x" * 50_000)
    assert [len(piece) for piece in pieces] == [4 * PAPERS.part, 4 * PAPERS.part, 10_000]
    assert [len(piece) for piece in parts("x" * 1_000, 100)] == [400, 400, 200]
