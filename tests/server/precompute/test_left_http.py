"""Somebody arrives while a chunk of a background request is computed: the bundled model on a server, 30 layers deep.

When exactly a request arrives is nobody's choice here, so requests come until one of them found a chunk in flight.
"""

from __future__ import annotations

import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support import http

NUM_TOKENS, NUM_COMMON, MOST_TRIES = 900, 700, 20
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


def test_who_arrives_in_a_chunk_is_answered_like_anybody(server: str) -> None:
    """It shares most of its prompt with the background request. The same tokens under another salt are computed."""
    rng = random.Random(5)
    model = http.get(f"{server}/v1/models").json()["data"][0]["id"]
    before = count(server, "precomputed_left_tokens")
    with ThreadPoolExecutor(1) as pool:
        for number in range(MOST_TRIES):
            prompt = [rng.randrange(1000, 40_000) for _ in range(NUM_TOKENS)]
            name, salt = f"left-{number}", f"left {number}"
            ahead = {"session_id": name, "precompute": True}
            background = pool.submit(complete, server, model, prompt, salt, ahead)
            time.sleep(rng.uniform(0.2, 1.2))
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
    assert count(server, "precomputed_wasted_tokens") >= count(server, "precomputed_left_tokens") - before
