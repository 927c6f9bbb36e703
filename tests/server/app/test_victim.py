"""What a stranger's short request waits for beside a client whose edits are made to be long to plan.

    rounds    plain  attack  attack  plain ...      the same prompts, without a session and as edits of one
    victim    20 tokens, one after the other, through all of it

Whoever sends long prompts slows others down, by their prefill. So the attack is compared with the same prompts sent
plainly, in steps of few tokens. Each comes first in half of the rounds, since a machine may slow down.
`make worst-step` runs it, and writes `benchmarks/results/victim.json`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acmserve.bench.harness.machine import describe_machine
from acmserve.bench.provenance.kept_file import write_whole
from tests.simulator.test_worst_step import MINUTES
from tests.support import http
from tests.support.server.running_server import running_server
from tests.support.server.scripted_server import FLAGS, MODEL, write_model

NUM_ROUNDS, NUM_EDITS = 6, 4
NUM_TOKENS, PIECE = 16_000, 34
STEP_TOKENS = 512
MAX_RATIO = 1.2
RESULT = Path(__file__).parents[3] / "benchmarks" / "results" / "victim.json"
ROUTE = "/inference/v1/generate"


class Victim:
    """Asks for one token again and again, and keeps how long each took in milliseconds."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._is_over = threading.Event()
        self.waits_ms: list[float] = []

    def run(self) -> None:
        rng = np.random.default_rng(0)
        while not self._is_over.is_set():
            prompt = rng.integers(10, 1000, 20).tolist()
            start = time.perf_counter()
            ask(self._server, prompt, {})
            self.waits_ms.append(1e3 * (time.perf_counter() - start))
            time.sleep(0.01)

    def __enter__(self) -> Victim:
        self._thread = threading.Thread(target=self.run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


def ask(server: str, prompt: list[int], extra: dict[str, Any]) -> None:
    body = {"model": MODEL, "token_ids": prompt, "sampling_params": {"max_tokens": 1}, **extra}
    http.post(server + ROUTE, json=body).raise_for_status()


def edits(seed: int) -> list[list[int]]:
    """A text, and the text with one token in 34 changed: each piece between two of them can be moved."""
    rng = np.random.default_rng(seed)
    text = rng.integers(10, 1000, NUM_TOKENS)
    prompts = [text]
    for _ in range(NUM_EDITS):
        edited = np.insert(text, rng.integers(PIECE), 7)[:NUM_TOKENS]
        edited[rng.integers(PIECE) :: PIECE] = rng.integers(10, 1000)
        prompts.append(edited)
    return [prompt.tolist() for prompt in prompts]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A server whose prefill of one step is short, so that a long plan would be seen."""
    flags = [*FLAGS, "--enable-scale-out", "--max-num-batched-tokens", str(STEP_TOKENS)]
    with running_server(write_model(tmp_path / "model"), tmp_path / "log", flags, tiny=True) as url:
        yield url


@pytest.mark.skipif(not MINUTES, reason="a measurement: `make worst-step`")
def test_a_victim_waits_hardly_longer_beside_the_attack(server: str) -> None:
    machine = describe_machine()
    waits: dict[str, list[float]] = {"idle": [], "plain": [], "attack": []}
    for number in range(NUM_ROUNDS):
        for kind in ("plain", "attack") if number % 2 == 0 else ("attack", "plain"):
            prompts = edits(number)
            with Victim(server) as victim:
                for prompt in prompts:
                    extra: dict[str, Any] = {"cache_salt": f"{kind} {number}"}
                    if kind == "attack":
                        acm = {"session_id": f"victim-{number}", "fidelity": "reuse"}
                        extra["kv_transfer_params"] = {"acm": acm}
                    ask(server, prompt, extra)
            waits[kind] += victim.waits_ms
        with Victim(server) as victim:
            time.sleep(3)
        waits["idle"] += victim.waits_ms
    p99_ms = {kind: round(float(np.percentile(values, 99)), 1) for kind, values in waits.items()}
    ratio = p99_ms["attack"] / p99_ms["plain"]
    sizes = {
        "num_tokens": NUM_TOKENS,
        "piece": PIECE,
        "num_waits": {kind: len(values) for kind, values in waits.items()},
    }
    p50_ms = {kind: round(float(np.median(values)), 1) for kind, values in waits.items()}
    report = {
        "gate": {"green": ratio <= MAX_RATIO},
        "repetitions": NUM_ROUNDS,
        "p50_ms": p50_ms,
        "p99_ms": p99_ms,
        "ratio": round(ratio, 3),
        **sizes,
    }
    write_whole(RESULT, json.dumps(report | {"machine": machine}, indent=1) + "\n")
    assert ratio <= MAX_RATIO, report
