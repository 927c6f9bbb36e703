"""Speculative decoding by ngram on the real engine: a session's answers were drafted, and its KV moves all the same.

history   "... a b c a b c a b c"      the drafter finds what it has seen, and drafts what came behind it
fold      moved keys beside the answers of drafted steps, equal to `exact`
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from tests.engine.test_oracle import MARKER, MAX_DIFFERENCE, NEW
from tests.support.engine.edits import cut, text
from tests.support.engine.engine import TINY_SETTINGS, Engine, start_engine
from tests.support.engine.tiny_model import TINY_MODELS

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
SETTINGS: dict[str, Any] = {**TINY_SETTINGS, "block_size": 32, "speculative_config": NGRAM, "disable_log_stats": False}
HISTORY = [*text(400, "history"), *text(40, "again") * 8]
NUM_ANSWERED = 90
ATTENTION = 0.01


def num_drafts(engine: Engine) -> tuple[float, float]:
    """Tokens drafted, and those of them that were accepted."""
    values = {metric.name: getattr(metric, "value", 0.0) for metric in engine.llm.get_metrics()}
    names = ("vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens")
    num_drafted, num_accepted = (float(values[name]) for name in names)
    return num_drafted, num_accepted


def save_repetitive(folder: Path) -> Path:
    """A model whose next token depends on the last one most of all: it goes in circles, which a drafter foresees."""
    path = TINY_MODELS[0].write(folder)
    tensors = load_file(path / "model.safetensors")
    tensors["model.layers.0.self_attn.o_proj.weight"] *= ATTENTION
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_moved_kv_is_right(tmp_path: Path) -> None:
    """A long answer, then a fold in front of it: what moves is the end of the history with the whole answer."""
    with start_engine(save_repetitive(tmp_path), plugin={}, own_process=True, **SETTINGS) as engine:
        answer = engine.ask(HISTORY, "s", "reuse", max_tokens=NUM_ANSWERED)
        num_drafted, num_accepted = num_drafts(engine)
        context = [*cut([*HISTORY, *answer.token_ids], 100, 300, MARKER), *NEW]
        moved = engine.ask(context, "s", "reuse")
        assert moved.receipt is not None
        assert moved.receipt["fallback_reason"] is None
        # All behind the fold but the answer's last token, whose KV nobody computed.
        assert moved.receipt["moved_tokens"] == len(HISTORY) - 300 + NUM_ANSWERED - 1
        assert moved.distance(engine.ask(context, "t", "exact")) <= MAX_DIFFERENCE
        others = [*context[: -NUM_ANSWERED - len(NEW)], *text(NUM_ANSWERED, "another answer"), *NEW]
        assert moved.distance(engine.ask(others, "u", "exact")) > 10 * MAX_DIFFERENCE, "the model sees the answer"
    assert num_accepted > 4
    assert num_drafted - num_accepted > 10, "drafts were rejected, and their KV stood where answers stand now"
