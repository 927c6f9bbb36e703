"""Vectors for the search by meaning: from an OpenAI-compatible server, from a local Model2Vec folder, or not at all.

    --embedder http://host:8001#model     POST /v1/embeddings, in batches
    --embedder model2vec:FOLDER           a static embedding model, in this process (the extra `semantic`)

The passages of a conversation are embedded once. Vectors are remembered by the digest of their tenant and text, within
bounds, so a search embeds its query and what is new. What one tenant has embedded saves no other one any time.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from acmserve.errors import InvalidRequest
from acmserve.extras import install_extras
from acmserve.server.http.tenants import account_of
from acmserve.server.http.text_memory import text_digest
from acmserve.server.models.openai_server import OpenAIServer
from acmserve.server.models.protocols import Embedder
from acmserve.server.options.base_url import MODEL2VEC, check_embedder_url

API_KEY_VARIABLE = "ACMSERVE_EMBEDDER_API_KEY"
BATCH_SIZE = 128
TIMEOUT_SECONDS = 60.0
MAX_REMEMBERED_BYTES = 128 * 2**20

Vector = NDArray[np.float32]
_BOTH_WAYS = (
    "Search with mode 'exact', or start the server with --embedder http://HOST:PORT#MODEL (any OpenAI-compatible "
    f"/v1/embeddings) or --embedder model2vec:FOLDER (in a checkout: {install_extras('semantic')})."
)


def parse_embedder(spec: str) -> Embedder:
    """The embedder that `--embedder` names. Raises InvalidRequest for one that cannot work."""
    if not spec:
        return NoEmbedder()
    if spec.startswith(MODEL2VEC):
        return Model2VecEmbedder(Path(spec.removeprefix(MODEL2VEC)))
    check_embedder_url(spec)
    url, _, model = spec.partition("#")
    return HttpEmbedder(url, model)


class NoEmbedder:
    """Stands where the server has no embedder: says how to get one."""

    async def embed(self, texts: Sequence[str], tenant: str) -> Sequence[Sequence[float]]:
        """Always raises InvalidRequest."""
        raise InvalidRequest("mode", "this server has no embedder, so it cannot search by meaning.", _BOTH_WAYS)


class RememberingEmbedder(ABC):
    """Embeds every text of a tenant once. The vectors of all hold at most `max_bytes`.

    Over that the one used longest ago goes of the API key that holds most. So a key keeps its share of the bound.
    """

    def __init__(self, max_bytes: int = MAX_REMEMBERED_BYTES) -> None:
        self._vectors: dict[str, OrderedDict[bytes, Vector]] = defaultdict(OrderedDict)
        self._max_bytes = max_bytes
        self._num_bytes: Counter[str] = Counter()

    async def embed(self, texts: Sequence[str], tenant: str) -> Sequence[Sequence[float]]:
        """One vector for each text, float32. Raises InvalidRequest or Unavailable."""
        account = account_of(tenant)
        held, digests = self._vectors[account], [text_digest(tenant, text) for text in texts]
        vectors = {digest: held[digest] for digest in digests if digest in held}
        missing = {d: text for d, text in zip(digests, texts, strict=True) if d not in vectors}
        if missing:
            made = await self._embed(list(missing.values()))
            vectors |= dict(zip(missing, made, strict=True))
        for digest in dict.fromkeys(digests):
            self._remember(account, digest, vectors[digest])
        return cast("Sequence[Sequence[float]]", [vectors[digest] for digest in digests])

    @abstractmethod
    async def _embed(self, texts: Sequence[str]) -> Sequence[Vector]:
        """One vector for each text, all of one length."""

    def _remember(self, account: str, digest: bytes, vector: Vector) -> None:
        self._drop(account, digest)
        self._vectors[account][digest] = vector
        self._num_bytes[account] += vector.nbytes
        while self._num_bytes.total() > self._max_bytes:
            _, largest = max((num_bytes, name) for name, num_bytes in self._num_bytes.items())
            self._drop(largest, next(iter(self._vectors[largest])))

    def _drop(self, account: str, digest: bytes) -> None:
        if (old := self._vectors[account].pop(digest, None)) is not None:
            self._num_bytes[account] -= old.nbytes


class HttpEmbedder(RememberingEmbedder):
    """Asks an OpenAI-compatible server. Without a model's name, the first model it lists."""

    def __init__(
        self,
        url: str,
        model: str = "",
        *,
        batch_size: int = BATCH_SIZE,
        timeout_seconds: float = TIMEOUT_SECONDS,
        max_bytes: int = MAX_REMEMBERED_BYTES,
    ) -> None:
        super().__init__(max_bytes)
        self._server = OpenAIServer(
            url, os.environ.get(API_KEY_VARIABLE), purpose="embeddings", field="mode", timeout_seconds=timeout_seconds
        )
        self._model = model
        self._batch_size = batch_size

    async def _embed(self, texts: Sequence[str]) -> Sequence[Vector]:
        self._model = self._model or await self._server.first_model()
        vectors: list[Vector] = []
        for start in range(0, len(texts), self._batch_size):
            batch = list(texts[start : start + self._batch_size])
            payload = {"model": self._model, "input": batch, "encoding_format": "float"}
            vectors += self._read(await self._server.post("embeddings", payload), len(batch))
        if len({len(vector) for vector in vectors}) > 1:
            raise self._server.unusable("vectors of different lengths")
        return vectors

    def _read(self, answer: Any, num_texts: int) -> list[Vector]:
        try:
            found = {item["index"]: np.asarray(item["embedding"], dtype=np.float32) for item in answer["data"]}
            vectors = [found[index] for index in range(num_texts)]
        except (LookupError, TypeError, ValueError) as error:
            raise self._server.unusable(f"something that is not {num_texts} embeddings") from error
        if any(vector.ndim != 1 or not np.isfinite(vector).all() for vector in vectors):
            raise self._server.unusable("embeddings that are not vectors of numbers")
        return vectors


class Model2VecEmbedder(RememberingEmbedder):
    """A Model2Vec model in a local folder: averages of token vectors, fast on any CPU. Read at the first search."""

    def __init__(self, folder: Path, *, max_bytes: int = MAX_REMEMBERED_BYTES) -> None:
        super().__init__(max_bytes)
        if find_spec("model2vec") is None:
            raise InvalidRequest(
                "embedder",
                "the package model2vec is not installed.",
                f"In a checkout of acmserve run {install_extras('semantic')}.",
            )
        if not folder.is_dir():
            raise InvalidRequest(
                "embedder", f"there is no folder {str(folder)!r}.", "Name a folder with a Model2Vec model."
            )
        self._folder = folder
        self._model: Any = None

    async def _embed(self, texts: Sequence[str]) -> Sequence[Vector]:
        return await asyncio.to_thread(self._encode, list(texts))

    def _encode(self, texts: list[str]) -> list[Vector]:
        if self._model is None:
            self._model = import_module("model2vec").StaticModel.from_pretrained(str(self._folder))
        # Copies: a row of the whole array keeps all of it, beside the bound.
        return [row.copy() for row in np.asarray(self._model.encode(texts), dtype=np.float32)]
