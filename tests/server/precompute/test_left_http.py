"""Somebody arrives while a chunk of a background request is computed: the bundled model on a server, 30 layers deep.

When exactly a request arrives is nobody's choice here, so requests come until one of them found a chunk in flight. Half
a request is enough: the server knows of it before it has read it.
"""

from __future__ import annotations

import random
import re
import socket
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support import http

NUM_TOKENS, NUM_COMMON, MOST_TRIES = 600, 450, 8
ROUNDING = 5e-3


def count(server: str, name: str) -> float:
    """A counter of the server, over its engines."""
    text = http.get(f"{server}/metrics").text
    return sum(map(float, re.findall(rf"^acmserve:{name}_total{{[^}}]*}} (\S+)$", text, re.MULTILINE)))


def complete(server: str, model: str, tokens: list[int], salt: str, acm: dict[str, Any] | None) -> dict[str, Any]:
    """The log probabilities of an answer of six tokens, or of the one of a background request."""
    is_background = acm is not None and acm.get("precompute", False)
    body = {"model": model, "prompt": tokens, "temperature": 0, "ignore_eos": True, "cache_salt": salt}
    body |= {"max_tokens": 1 if is_background else 6, "logprobs": 1}
    body |= {"kv_transfer_params": {"acm": acm}} if acm is not None else {}
    answer = http.post(f"{server}/v1/completions", json=body).raise_for_status().json()
    found: dict[str, Any] = answer["choices"][0]["logprobs"]
    return found


@pytest.fixture(scope="module")
def model(server: str) -> str:
    name: str = http.get(f"{server}/v1/models").json()["data"][0]["id"]
    return name


@pytest.fixture(scope="module")
def seconds_alone(server: str, model: str) -> float:
    """How long a background request takes here while nobody comes."""
    rng = random.Random(4)
    prompt, name = [rng.randrange(1000, 40_000) for _ in range(NUM_TOKENS)], uuid.uuid4().hex
    began = time.monotonic()
    complete(server, model, prompt, name, {"session_id": name, "precompute": True})
    return time.monotonic() - began


def test_who_arrives_in_a_chunk_is_answered_like_anybody(server: str, model: str, seconds_alone: float) -> None:
    """It shares most of its prompt with the background request. The same tokens under another salt are computed."""
    rng = random.Random(5)
    before, wasted = count(server, "precomputed_left_tokens"), count(server, "precomputed_wasted_tokens")
    with ThreadPoolExecutor(1) as pool:
        for number in range(MOST_TRIES):
            prompt = [rng.randrange(1000, 40_000) for _ in range(NUM_TOKENS)]
            name, salt = f"left-{number}", f"left {number}"
            ahead = {"session_id": name, "precompute": True}
            background = pool.submit(complete, server, model, prompt, salt, ahead)
            time.sleep(rng.uniform(0, seconds_alone))
            own = [*prompt[:NUM_COMMON], 7, 8, 9]
            answer = complete(server, model, own, salt, {"session_id": name, "fidelity": "exact"})
            fresh = complete(server, model, own, f"{salt}, never used before", None)
            background.result()
            assert answer["tokens"] == fresh["tokens"]
            distances = [abs(a - b) for a, b in zip(answer["token_logprobs"], fresh["token_logprobs"], strict=True)]
            assert max(distances) <= ROUNDING
            if count(server, "precomputed_left_tokens") > before:
                break
    assert count(server, "precomputed_left_tokens") > before
    assert count(server, "precomputed_wasted_tokens") - wasted >= count(server, "precomputed_left_tokens") - before


@contextmanager
def half_a_request(server: str, path: str) -> Iterator[None]:
    """A client that has sent the head of a request, and leaves without its body."""
    where = urlsplit(server)
    assert where.hostname is not None
    lines = (f"POST {path} HTTP/1.1", f"Host: {where.netloc}", "Content-Type: application/json", "Content-Length: 64")
    with socket.create_connection((where.hostname, where.port or 80)) as client:
        client.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode())
        yield


@pytest.mark.parametrize(
    ("path", "is_left"),
    [("/v1/chat/completions", True), ("/v1/messages/count_tokens", False)],
    ids=["", "control"],
)
def test_half_a_request_ends_a_chunk(server: str, model: str, seconds_alone: float, path: str, is_left: bool) -> None:
    """Whoever sent it leaves again, and the background request is computed to its end. A count wants no engine."""
    rng = random.Random(6)
    before, num_left = count(server, "precomputed_left_tokens"), 0.0
    with ThreadPoolExecutor(1) as pool:
        for number in range(MOST_TRIES if is_left else 2):
            prompt = [rng.randrange(1000, 40_000) for _ in range(NUM_TOKENS)]
            name = f"half-{is_left}-{number}"
            background = pool.submit(complete, server, model, prompt, name, {"session_id": name, "precompute": True})
            time.sleep(rng.uniform(0, seconds_alone))
            with half_a_request(server, path):
                time.sleep(0.5)
            assert background.result()["tokens"], "it is computed all the same"
            num_left = count(server, "precomputed_left_tokens") - before
            if num_left:
                break
    assert (num_left > 0) is is_left
