"""What may not be moved is computed exactly, the receipt says why, and the log says it once at start."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config
from vllm import SamplingParams
from vllm.inputs import EmbedsPrompt

from acmserve.engine.config import engine_config
from acmserve.engine.worker.model_verdict import judge_model
from tests.support.engine.edits import cut, text
from tests.support.engine.engine import TINY_SETTINGS, read_answer, start_engine
from tests.support.engine.tiny_model import TINY_MODELS, VOCAB_SIZE, save_random

HISTORY = text(700, "history")
CONTEXT = [*cut(HISTORY, 200, 420, text(11, "marker")), *text(23, "new")]
LEARNED = GPT2Config(vocab_size=VOCAB_SIZE, n_positions=4096, n_embd=128, n_layer=1, n_head=4, dtype="float32")


def test_a_model_that_does_not_allow_moves_answers_exactly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And what `acmserve doctor` says of it without its weights is what the engine finds."""
    path = save_random(LEARNED, tmp_path / "model")
    with (
        caplog.at_level(logging.WARNING, logger="acmserve"),
        start_engine(path, plugin={}, own_process=False, **TINY_SETTINGS) as engine,
    ):
        engine.ask(HISTORY, "s", "reuse")
        answer = engine.ask(CONTEXT, "s", "reuse")
        assert answer.receipt is not None
        assert answer.receipt["moved_tokens"] == 0
        assert answer.receipt["kept_tokens"] == 200, "a partial block at its old place may still be copied"
        reason = answer.receipt["fallback_reason"]
        assert "positions: values of transformer.h.0.attn.attn change by" in reason
        assert answer.distance(engine.ask(CONTEXT, salt="fresh")) < 1e-3
        exact = engine.ask(CONTEXT, "t", "exact")
        assert exact.receipt is not None
        assert exact.receipt["fallback_reason"] is None, "nothing was asked for that could not be done"
    warnings = [record for record in caplog.records if "moves are off" in record.getMessage()]
    assert len(warnings) == 1
    refusal = judge_model(str(path), max_model_len=4096, **engine_config()).refusal
    assert refusal is not None
    assert without_figures(refusal) == without_figures(reason)


def without_figures(reason: str) -> str:
    """Weights differ, so what was measured does."""
    return re.sub(r"[\d.]+%", "", reason)


def test_without_prefix_caching_every_token_is_computed(tmp_path: Path) -> None:
    settings = {**TINY_SETTINGS, "enable_prefix_caching": False}
    with start_engine(TINY_MODELS[0].write(tmp_path), plugin={}, own_process=False, **settings) as engine:
        engine.ask(HISTORY, "s", "reuse")
        answer = engine.ask(CONTEXT, "s", "reuse")
        assert answer.receipt is not None
        assert answer.receipt["computed_tokens"] == len(CONTEXT)
        assert "prefix caching" in answer.receipt["fallback_reason"]


def test_a_source_that_is_gone_is_computed(tmp_path: Path) -> None:
    """The pool holds little more than one sequence: other text drives the source out before the edit comes."""
    settings = {**TINY_SETTINGS, "num_gpu_blocks_override": 40, "block_size": 32, "max_model_len": 1024}
    with start_engine(TINY_MODELS[0].write(tmp_path), plugin={}, own_process=False, **settings) as engine:
        engine.ask(HISTORY, "s", "reuse")
        engine.ask(text(1000, "somebody else"))
        answer = engine.ask(CONTEXT, "s", "reuse")
        assert answer.receipt is not None
        assert answer.receipt["moved_tokens"] < 269
        assert answer.receipt["fallback_reason"] == "source_evicted"
        assert answer.distance(engine.ask(CONTEXT, salt="fresh")) < 1e-3


def test_prompt_embeddings_are_computed_and_are_no_source(tmp_path: Path) -> None:
    """Embeddings of the very tokens that the session has KV of, and then these tokens themselves."""
    path = TINY_MODELS[0].write(tmp_path)
    table = load_file(path / "model.safetensors")["model.embed_tokens.weight"]
    with start_engine(path, plugin={}, own_process=False, enable_prompt_embeds=True, **TINY_SETTINGS) as engine:
        engine.ask(HISTORY, "s", "reuse")
        prompt = EmbedsPrompt(prompt_embeds=table[torch.tensor(CONTEXT)])
        acm = {"session_id": "s", "fidelity": "reuse"}
        params = SamplingParams(
            temperature=0, max_tokens=1, ignore_eos=True, logprobs=20, extra_args={"kv_transfer_params": {"acm": acm}}
        )
        answer = read_answer(engine.llm.generate([prompt], [params], use_tqdm=False)[0])
        assert answer.receipt is not None
        assert answer.receipt["computed_tokens"] == len(CONTEXT)
        assert answer.receipt["fallback_reason"] == "request: prompt embeddings are not supported"
        moved = engine.ask(CONTEXT, "s", "reuse")
        assert moved.receipt is not None
        assert moved.receipt["moved_tokens"] > 200, "the source is what came as tokens"
        assert moved.distance(answer) < 1e-3
