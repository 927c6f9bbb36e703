"""Answers behind chunks that were left have the tokens and log probabilities of an engine without precompute.

Both are real engines, one after the other. The one without precompute is vLLM as it is, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.inputs import TokensPrompt

from acmserve.engine.scheduling.exits.chunk_exits import ChunkExits
from tests.engine.scheduling.test_chunk_exits import arrival_in_layer, exits_of
from tests.support.engine.edits import Tokens, text
from tests.support.engine.engine import TINY_SETTINGS, Engine, scheduler_of, start_engine
from tests.support.engine.tiny_model import TWO_LAYERS
from tests.support.precomputing import BLOCK_SIZE, CHUNK, EXACT, precomputing, run_all, run_step, send

STEPS: tuple[tuple[int | None, ...], ...] = (
    (0,),
    (None, 1),
    (None, None, 0),
    (0, 1, None, 0, None),
    (None, 0, 0, None, None),
    (1, None, 0, None, 1, None),
    (None, None, None),
)
"""What becomes of the chunks in front of each turn: left in that layer, or computed to their end. Each needs three."""
NUM_COMMON, NUM_ANSWERED = 96, 12
NEW = text(23, "what the user says next")

Served = tuple[tuple[int, ...], tuple[float, ...]]
"""The tokens of an answer, and the log probability of each."""


def context(turn: int) -> Tokens:
    """What is computed in advance for a turn: a head that all turns have, and what is its own. Three chunks."""
    return [*text(NUM_COMMON, "head"), *text(2 * CHUNK + 40 + 17 * turn, f"context {turn}")]


@dataclass(frozen=True)
class Behind:
    """Every turn's answer behind chunks that were left, and what became of the tokens computed in advance."""

    answers: list[Served]
    num_left: int
    num_used: int
    control: list[Served]
    """The answers where the blocks of such a chunk are kept as computed."""


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Behind:
    with precomputing(tmp_path_factory.mktemp("models")) as engine, pytest.MonkeyPatch.context() as patch:
        answers = answer_all(engine, "one client")
        counts = replace(scheduler_of(engine).connector.precompute.blocks.counts)
        patch.setattr(ChunkExits, "takes_back", False)
        return Behind(answers, counts.left_tokens, counts.used_tokens, answer_all(engine, "another client"))


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory, behind: Behind) -> list[Served]:
    """Every turn's answer of vLLM as it is. It starts last: a process in which it is first loads no plugin later."""
    model = TWO_LAYERS.write(tmp_path_factory.mktemp("models"))
    with start_engine(model, plugin=None, own_process=True, block_size=BLOCK_SIZE, **TINY_SETTINGS) as engine:
        return [serve(engine, turn, f"turn {turn}", {}) for turn in range(len(STEPS))]


def serve(engine: Engine, turn: int, salt: str, acm: dict[str, Any]) -> Served:
    """The answer to a turn. Background requests that are alive are computed to their end behind it."""
    extra = {"kv_transfer_params": {"acm": acm}} if acm else None
    params = SamplingParams(temperature=0, max_tokens=NUM_ANSWERED, ignore_eos=True, logprobs=1, extra_args=extra)
    prompt = TokensPrompt(prompt_token_ids=[*context(turn), *NEW], cache_salt=salt)
    engine.llm.llm_engine.add_request(salt, prompt, params)
    completion = run_all(engine)[salt].outputs[0]
    tokens = tuple(completion.token_ids)
    return tokens, tuple(place[token].logprob for place, token in zip(completion.logprobs, tokens, strict=True))


def answer_all(engine: Engine, salt: str) -> list[Served]:
    """Every turn behind its chunks. All turns are of one session and one salt, so they share what is computed."""
    answers = []
    for turn, steps in enumerate(STEPS):
        send(engine, f"ahead {turn} of {salt}", context(turn), salt, precompute=True)
        for layer in steps:
            if layer is None:
                run_step(engine)
                continue
            with arrival_in_layer(engine, layer):
                run_step(engine)
            exits_of(engine).on_known()
        answers.append(serve(engine, turn, salt, {"session_id": "s", "fidelity": "exact"}))
        scheduler_of(engine).connector.check_integrity()
    return answers


def distance(one: Sequence[Served], other: Sequence[Served]) -> float:
    """Largest difference of log probability over all answers, infinite where a token is another."""
    if [tokens for tokens, _ in one] != [tokens for tokens, _ in other]:
        return float("inf")
    pairs = zip(one, other, strict=True)
    return max(abs(a - b) for (_, mine), (_, others) in pairs for a, b in zip(mine, others, strict=True))


def test_answers_are_those_without_precompute(behind: Behind, wanted: list[Served]) -> None:
    assert distance(behind.answers, wanted) <= EXACT
    num_left = sum(layer is not None for steps in STEPS for layer in steps)
    assert behind.num_left > (num_left - 3) * CHUNK, "three of the chunks are short"
    assert behind.num_used > 4 * 2 * CHUNK, "and what was computed in advance is what answers"


def test_control(behind: Behind, wanted: list[Served]) -> None:
    """Where the blocks of a chunk that was left are kept as computed, they answer otherwise."""
    assert distance(behind.control, wanted) > EXACT
