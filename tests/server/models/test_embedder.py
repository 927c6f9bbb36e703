"""Embedders against a real HTTP server and a real Model2Vec folder."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acmserve.context.session.history import adopt
from acmserve.context.tools.run import ToolCall
from acmserve.errors import InvalidRequest, Unavailable
from acmserve.server.http.tenants import Tenants
from acmserve.server.models import embedder
from acmserve.server.models.embedder import (
    HttpEmbedder,
    Model2VecEmbedder,
    NoEmbedder,
    RememberingEmbedder,
    Vector,
    parse_embedder,
)
from tests.support.server.acm_app import make_server
from tests.support.server.fake_openai import Answer, openai_server
from tests.support.server.running_server import free_port


def vector(text: str) -> list[float]:
    return [float(len(text)), float(text.count("a")), 1.0]


def embed(embedder: Any, *texts: str, tenant: str = "") -> list[list[float]]:
    return np.asarray(asyncio.run(embedder.embed(texts, tenant))).tolist()


class Asked(RememberingEmbedder):
    """Remembers what it was asked, each time."""

    def __init__(self, max_bytes: int = 1000) -> None:
        super().__init__(max_bytes)
        self.batches: list[list[str]] = []

    async def _embed(self, texts: Sequence[str]) -> list[Vector]:
        self.batches.append(list(texts))
        return [np.asarray(vector(text), dtype=np.float32) for text in texts]

    def num_asked(self, *texts: str, tenant: str) -> int:
        """How many of these texts the model is asked for now."""
        self.batches.clear()
        assert embed(self, *texts, tenant=tenant) == [vector(text) for text in texts]
        return sum(map(len, self.batches))

    @property
    def num_bytes(self) -> int:
        return sum(vector.nbytes for held in self._vectors.values() for vector in held.values())


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


def test_no_tenant_learns_by_the_time_of_a_search_what_another_one_has_embedded() -> None:
    """A guess was known at once where the very text had been embedded for another key."""
    keys, asked = Tenants(has_api_keys=True), Asked()
    salted = [keys.of({"authorization": f"Bearer {key}"}, salt) for key in "ab" for salt in ("", "x", "y")]
    for tenant in [*salted, "", Tenants(has_api_keys=False).of({}, "x")]:
        assert asked.num_asked("a", "secret", tenant=tenant) == 2
        assert asked.num_asked("a", "secret", tenant=tenant) == 0, "the control: each finds its own"


def test_a_search_embeds_for_the_tenant_of_its_session() -> None:
    server, asked = make_server(), Asked()
    server.editor._embedder = asked
    call = ToolCall("search_context", {"query": "apples", "mode": "semantic"})

    def search(tenant: str) -> None:
        session = server.store.open(tenant, "s")
        server.store.save(session, adopt(session.state, [{"role": "user", "content": "red apples"}]).state)
        outcome = asyncio.run(server.editor.call_tool(session, call, "sculptor-v1", "exact"))
        assert outcome.error is None

    for tenant in ("a", "b", "a", "b"):
        search(tenant)
    assert asked.batches == [["apples", "red apples"]] * 2


def test_a_key_that_embeds_much_leaves_the_others_their_share() -> None:
    size = 3 * 4
    asked = Asked(max_bytes=6 * size)
    assert asked.num_asked("a", "b", "c", tenant="quiet") == 3
    for number in range(50):
        asked.num_asked(str(number), str(number + 1), tenant=f"loud/{number}")
        assert asked.num_bytes <= 6 * size
    assert asked.num_bytes == asked._num_bytes.total() == 6 * size, "the bound holds for all keys together"
    assert asked.num_asked("a", "b", "c", tenant="quiet") == 0
    assert asked.num_asked("49", "50", tenant="loud/49") == 0
    assert asked.num_asked("48", "49", tenant="loud/48") == 2 - 1, "the loud one keeps what it used last"
    assert asked.num_asked(*"abcdef", tenant="quiet") == 3
    assert asked.num_asked(*"def", tenant="quiet") == 0, "over its share a key loses its own"


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
    with pytest.raises(InvalidRequest, match=r"does not begin with http:// or https://\..* or model2vec:FOLDER\."):
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
    assert all(held.base is None for held in local._vectors[""].values()), "none keeps the whole batch"
