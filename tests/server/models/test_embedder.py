"""Embedders against a real HTTP server and a real Model2Vec folder."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acmserve.errors import InvalidRequest, Unavailable
from acmserve.server.models import embedder
from acmserve.server.models.embedder import HttpEmbedder, Model2VecEmbedder, NoEmbedder, parse_embedder
from tests.support.server.fake_openai import Answer, openai_server
from tests.support.server.running_server import free_port


def vector(text: str) -> list[float]:
    return [float(len(text)), float(text.count("a")), 1.0]


def embed(embedder: Any, *texts: str) -> list[list[float]]:
    return np.asarray(asyncio.run(embedder.embed(texts))).tolist()


class Embeddings:
    """Answers like `/v1/embeddings`, in reverse order, and remembers what it was asked."""

    def __init__(self) -> None:
        self.batches: list[Sequence[str]] = []
        self.models: list[str] = []
        self.keys: list[str | None] = []

    def __call__(self, path: str, body: Any, key: str | None) -> Answer:
        if path == "/v1/models":
            return 200, {"data": [{"id": "first"}]}
        assert path == "/v1/embeddings"
        self.batches.append(body["input"])
        self.models.append(body["model"])
        self.keys.append(key)
        data = [{"index": index, "embedding": vector(text)} for index, text in enumerate(body["input"])]
        return 200, {"data": data[::-1]}


def test_texts_are_embedded_in_batches_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(embedder.API_KEY_VARIABLE, "secret")
    embeddings = Embeddings()
    with openai_server(embeddings) as url:
        http = HttpEmbedder(url, "small", batch_size=2)
        texts = ["a", "bb", "aaa", "a", "dddd"]
        assert embed(http, *texts) == [vector(text) for text in texts]
        assert embeddings.batches == [["a", "bb"], ["aaa", "dddd"]]
        assert embed(http, "bb", "new") == [vector("bb"), vector("new")]
        assert embeddings.batches[2:] == [["new"]]
    assert set(embeddings.models) == {"small"}
    assert set(embeddings.keys) == {"Bearer secret"}


def test_the_memory_of_vectors_is_bounded() -> None:
    embeddings = Embeddings()
    with openai_server(embeddings) as url:
        http = HttpEmbedder(f"{url}/v1/", "small", max_bytes=2 * 3 * 4)
        assert embed(http, "a", "b", "c") == [vector("a"), vector("b"), vector("c")]
        embed(http, "c", "b")
        embed(http, "a")
    assert embeddings.batches == [["a", "b", "c"], ["a"]]


def test_without_a_name_the_first_model_is_asked() -> None:
    embeddings = Embeddings()
    with openai_server(embeddings) as url:
        embed(parse_embedder(url), "a")
        embed(parse_embedder(f"{url}#second"), "a")
    assert embeddings.models == ["first", "second"]


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        ((500, {}), Unavailable, "HTTP status 500"),
        ((401, {}), Unavailable, "HTTP status 401"),
        ((400, {"error": "too long"}), InvalidRequest, "too long"),
        ((200, "<html>"), Unavailable, "not JSON"),
        ((200, {"data": []}), Unavailable, "not 1 embeddings"),
        ((200, {"data": [{"index": 0, "embedding": [[1.0]]}]}), Unavailable, "not vectors"),
        ((200, {"data": [{"index": 0, "embedding": [float("nan")]}]}), Unavailable, "not vectors"),
    ],
)
def test_wrong_answers_are_told_apart(answer: Answer, error: type[Exception], said: str) -> None:
    with openai_server(lambda *_: answer) as url, pytest.raises(error, match=said):
        embed(HttpEmbedder(url, "small"), "a")


def test_a_server_that_is_not_there_is_unavailable_and_passwords_stay_out() -> None:
    url = f"http://me:pass@127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:\d+\) cannot be reached") as caught:
        embed(HttpEmbedder(url, "small"), "a")
    assert "pass" not in str(caught.value)


def test_without_an_embedder_the_error_names_both_ways() -> None:
    none = parse_embedder("")
    assert isinstance(none, NoEmbedder)
    with pytest.raises(InvalidRequest, match=r"--embedder http://.*--embedder model2vec:FOLDER"):
        embed(none, "a")


@pytest.mark.parametrize("spec", ["ftp://host", "model2vec", "small"])
def test_other_specs_are_refused(spec: str) -> None:
    with pytest.raises(InvalidRequest, match="neither an http"):
        parse_embedder(spec)


def test_a_missing_package_is_said_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "model2vec", None)
    with pytest.raises(InvalidRequest, match=r"In a checkout of acmserve run pip install '\.\[semantic\]'\."):
        parse_embedder("model2vec:anywhere")


def test_a_local_folder_embeds_by_meaning(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="there is no folder"):
        parse_embedder(f"model2vec:{tmp_path / 'nowhere'}")
    from model2vec import StaticModel
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "cat": 1, "dog": 2, "tax": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    vectors = np.array([[0, 0], [1, 0.1], [1, -0.1], [0, 1]], dtype=np.float32)
    StaticModel(vectors, tokenizer).save_pretrained(tmp_path / "model")
    local = parse_embedder(f"model2vec:{tmp_path / 'model'}")
    assert isinstance(local, Model2VecEmbedder)
    cat, dog, tax = np.asarray(embed(local, "cat", "dog", "tax"))
    assert cat @ dog > cat @ tax
