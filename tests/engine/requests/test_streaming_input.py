"""Streaming input on the real engine: what a session was served by it is what its next requests find of it.

vLLM takes pieces of input under one request: each answer becomes a part of the prompt, without its last token. The
engine core lives in this process, and gets the pieces as `AsyncLLM` sends them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.inputs import TokensPrompt

from tests.support.engine.edits import Tokens, text
from tests.support.engine.engine import TINY_SETTINGS, Engine, start_engine
from tests.support.engine.tiny_model import TWO_LAYERS

FIRST, MORE, NEW = text(100, "first"), text(60, "more"), text(23, "new")
NUM_SAID = 40
EXACT = 1e-3
"""Rounding: what the same tokens differ by when they are prefilled in other chunks."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = TWO_LAYERS.write(tmp_path_factory.mktemp("models"))
    with start_engine(path, plugin={}, own_process=False, block_size=32, **TINY_SETTINGS) as started:
        yield started


def stream(engine: Engine, session: str, salt: str, pieces: Sequence[Tokens]) -> list[Tokens]:
    """Send pieces of input, each when the one before is answered. Returns the answers."""
    core: Any = engine.llm.llm_engine.engine_core.engine_core  # type: ignore[attr-defined]
    processor: Any = engine.llm.llm_engine.input_processor
    extra = {"kv_transfer_params": {"acm": {"session_id": session}}}
    params = SamplingParams(temperature=0, max_tokens=NUM_SAID, ignore_eos=True, extra_args=extra)
    answers: list[Tokens] = []
    for piece in (*pieces, [0]):
        is_last = len(answers) == len(pieces)
        prompt = TokensPrompt(prompt_token_ids=list(piece), cache_salt=salt)
        made = processor.process_inputs(f"stream-{salt}", prompt, params, ("generate",), resumable=not is_last)
        core.add_request(*core.preprocess_add_request(made))
        said: Tokens = []
        while not is_last and len(said) < NUM_SAID:
            outputs, _ = core.step_fn()
            said += [token for each in outputs.values() for output in each.outputs for token in output.new_token_ids]
        answers += [] if is_last else [said]
    assert not core.scheduler.requests
    return answers


def test_what_follows_finds_the_kv_of_its_own_tokens(engine: Engine) -> None:
    """A prompt that goes on from the first piece with the last answer, whose place in the stream was another."""
    _, last = stream(engine, "s", "streamed", [FIRST, MORE])
    prompt = [*FIRST, *last, *NEW]
    answer = engine.ask(prompt, "s", "exact", salt="streamed", max_tokens=8)
    fresh = engine.ask(prompt, salt="fresh", max_tokens=8)
    assert answer.receipt is not None
    assert (answer.receipt["kept_tokens"], answer.receipt["moved_tokens"]) == (len(FIRST), 0)
    assert answer.token_ids == fresh.token_ids
    assert answer.distance(fresh) <= EXACT
    others = engine.ask([*prompt, *NEW], salt="streamed")
    assert others.distance(engine.ask([*prompt, *NEW], salt="fresh too")) <= EXACT, "nor does anybody else"


def test_the_conversation_goes_on_from_all_of_it(engine: Engine) -> None:
    first, last = stream(engine, "t", "whole", [FIRST, MORE])
    prompt = [*FIRST, *first[:-1], *MORE, *last, *NEW]
    answer = engine.ask(prompt, "t", "exact", salt="whole", max_tokens=8)
    assert answer.receipt is not None
    assert answer.receipt["kept_tokens"] == len(prompt) - len(NEW) - 1
    assert answer.distance(engine.ask(prompt, salt="fresh whole", max_tokens=8)) <= EXACT
