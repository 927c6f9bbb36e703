"""Retrieval and memory without a server of ours: what is found, what is trimmed, what a memory hands on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.eval.baselines.memagent import NO_MEMORY, parts, trimmed
from acmserve.bench.eval.baselines.plain_text import QUERY_TOKENS, plain_text, pseudo_query
from acmserve.bench.eval.baselines.retrieval import bm25, chunks, retrieve
from acmserve.bench.eval.baselines.way_limits import PAPERS, WayLimits
from acmserve.bench.eval.main import parser, samples_of
from acmserve.bench.eval.tasks.task import CHARS_PER_TOKEN, EvalSample
from acmserve.cli import main as cli
from tests.support.server.fake_openai import Answer, ToyModel, openai_server, says

DOCUMENTS = ["the fox jumps", "the dog sleeps and sleeps", "a bird"]
BM25_VECTORS = [
    ("dog sleeps the", [0.1002930, 1.1238966, 0.0]),
    ("the the bird", [0.2005860, 0.1563752, 0.6229581]),
    ("cat", [0.0, 0.0, 0.0]),
]
"""By hand, from Okapi's formula with k1 1.5, b 0.75 and epsilon 0.25.

A word of one document weighs ln(2.5 / 1.5) = 0.5108256. `the` has less than nothing, so a quarter of the mean of all
eight: 0.25 x (7 - 1) x 0.5108256 / 8 = 0.0957798. Lengths are 3, 5 and 2, their mean is 10 / 3. So `dog` has
0.5108256 x 2.5 / (1 + 1.5 x (0.25 + 0.75 x 1.5)) = 0.4170005 in the second, and `sleeps`, twice, 0.6287085.
"""


@pytest.mark.parametrize(("query", "ranks"), BM25_VECTORS)
def test_bm25_ranks_as_the_tool_of_the_paper_does(query: str, ranks: list[float]) -> None:
    assert bm25(DOCUMENTS, query) == pytest.approx(ranks, abs=1e-6)


def test_a_text_of_one_chunk_or_without_words_has_ranks() -> None:
    assert bm25([], "dog") == []
    assert bm25(["...", ""], "dog") == [0.0, 0.0]
    assert len(bm25(["the dog"], "dog")) == 1


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
    sizes = [len(chunk.split()) for chunk in found]
    assert "quartz" in found[0]
    assert sum(sizes[:-1]) < 1_500 <= sum(sizes) < 1_700
    assert retrieve("one two", "nothing") == ["one two"]


def test_the_chunk_that_reaches_the_limit_is_the_last() -> None:
    text = " ".join(f"Locker {number} of the hall of the north wing holds nothing." for number in range(60))
    found = retrieve(text, "What does the locker 31 hold?", WayLimits(retrieved=25))
    assert [len(chunk.split()) for chunk in found] == [11, 11, 11]


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


def samples(*arguments: str) -> list[EvalSample]:
    return samples_of(parser().parse_args(["http://nowhere", "--samples", "1", *arguments]))


def asked_of(folder: Path, reply: Any, *arguments: str) -> list[dict[str, Any]]:
    """The bodies of all requests of a run."""
    toy = ToyModel(reply)
    with openai_server(toy) as url:
        assert cli(["eval", url, "--samples", "1", *arguments, "--output", str(folder)]) == 0
    return toy.bodies


def test_a_memory_reaches_the_next_part_and_an_empty_one_leaves_the_old(tmp_path: Path) -> None:
    written = ["memory one", "", "  \n", "memory four"]
    number = iter(range(99))

    def reply(body: Any) -> Answer:
        at = next(number)
        return says(written[at] if at < len(written) else "the answer", {"prompt_tokens": 9, "completion_tokens": 2})

    flags = ["--tasks", "longbench-v2", "--set", "longbench-v2.tokens=1000", "--max-tokens", "4000"]
    (sample,) = samples(*flags)
    size = -(-len(sample.context) // (4 * CHARS_PER_TOKEN))
    bodies = asked_of(tmp_path, reply, *flags, "--ways", "memagent", "--part", str(size))
    told = [body["messages"][-1]["content"] for body in bodies]
    pieces = parts(sample.context, size)
    assert (len(pieces), len(told)) == (4, 5)
    memories = [NO_MEMORY, "memory one", "memory one", "memory one", "memory four"]
    for at, (text, memory) in enumerate(zip(told, memories, strict=True)):
        assert f":\n{memory}\n\n" in text
        assert sample.question in text
        assert [piece in text for piece in pieces] == [at == other for other in range(4)]
    assert [body["max_tokens"] for body in bodies] == [sample.memory_tokens] * 4 + [4_000]
    assert sample.memory_tokens == 1_024
    assert json.loads((tmp_path / "results.json").read_text())["records"][0]["answer"] == "the answer"


@pytest.mark.parametrize("way", ["rag", "memagent"])
def test_a_conversation_is_played_as_one_text(way: str, tmp_path: Path) -> None:
    (sample,) = samples("--tasks", "mrcr")
    told = plain_text(sample)
    assert told.query == sample.question
    assert told.text.startswith(f"User: {sample.history[0]['content']}\n\nAssistant: {sample.history[1]['content']}")
    bodies = asked_of(tmp_path, lambda body: says("memory", {}), "--tasks", "mrcr", "--ways", way)
    assert str(bodies[0]["messages"][-1]["content"]).count("Assistant: ") >= len(sample.history) // 2
    assert str(bodies[-1]["messages"][-1]["content"]).endswith(sample.question)


@pytest.mark.parametrize("way", ["rag", "memagent"])
def test_a_text_that_asks_for_itself_is_asked_by_its_ends(way: str, tmp_path: Path) -> None:
    """As rows of MRCR v2 are: the question is the end of the only text."""
    turns = "\n\n".join(f"User: Write a note about {number}.\n\nAssistant: Note {number}." for number in range(400))
    row = {"queries": f"{turns}\n\nUser: Write the third note once more.", "answer": "abcdefghijkl Note 3."}
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    flags = ["--tasks", "mrcr-v2", "--data", f"mrcr-v2={tmp_path / 'rows.json'}"]
    (sample,) = samples(*flags)
    query, size = pseudo_query(sample.question), QUERY_TOKENS * CHARS_PER_TOKEN
    assert query == f"{row['queries'][:size]}\n{row['queries'][-size:]}"
    assert pseudo_query("short") == "short"
    bodies = asked_of(tmp_path / "out", lambda body: says("memory", {}), *flags, "--ways", way)
    assert str(bodies[-1]["messages"][-1]["content"]).endswith(f"\n\n{query}")


def test_a_text_with_a_conversation_in_front_of_it_keeps_both() -> None:
    (sample,) = samples("--tasks", "longbench-v2")
    talk = ({"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello you."})
    told = plain_text(replace(sample, history=talk))
    assert told.text == f"User: Hello.\n\nAssistant: Hello you.\n\n{sample.context}"
    assert plain_text(sample).text == sample.context
