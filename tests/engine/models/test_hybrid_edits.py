"""Exact folds on the real engine, on models with windows and with recurrent states, as stock vLLM starts them.

served   [ ..... ][ piece ][ ..... ][ piece ][ ... ]     each piece is named as foldable
folded   [ kept  ][m][ computed ...................]     up to less than a block in front of the fold
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PretrainedConfig, Qwen3NextConfig
from vllm import SamplingParams
from vllm.inputs import TokensPrompt

from tests.engine.test_oracle import HISTORY, MARKER, NEW
from tests.engine.worker.test_architectures import COMMON
from tests.engine.worker.test_windows import gemma3
from tests.support.engine.edits import Tokens, cut
from tests.support.engine.engine import TINY_SETTINGS, Answer, Engine, read_answer, start_engine
from tests.support.engine.tiny_model import save_random

PIECES = [(200, 300), (333, 420), (520, 640), (700, 760)]
FOLDABLE = [list(piece) for piece in PIECES]
MAX_DIFFERENCE = 1e-3


def qwen3_next() -> PretrainedConfig:
    """Three layers of gated delta nets and one of attention. A state is as large as the KV of 128 tokens."""
    return Qwen3NextConfig(
        **(COMMON | {"num_hidden_layers": 4}),
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_conv_kernel_dim=4,
        num_experts=4,
        mlp_only_layers=[],
        decoder_sparse_step=1,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        num_experts_per_tok=1,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25},
        layer_types=["linear_attention"] * 3 + ["full_attention"],
    )


def ask(engine: Engine, tokens: Tokens, session: str, foldable: list[list[int]] | None = None) -> Answer:
    """An exact answer of one token. Its receipt is there."""
    acm = {"session_id": session, "foldable": foldable}
    params = SamplingParams(
        temperature=0, max_tokens=1, ignore_eos=True, logprobs=20, extra_args={"kv_transfer_params": {"acm": acm}}
    )
    (output,) = engine.llm.generate([TokensPrompt(prompt_token_ids=tokens)], [params], use_tqdm=False)
    answer = read_answer(output)
    assert answer.receipt is not None
    return answer


# vLLM's gated delta nets take no float32 on a CPU.
@pytest.mark.parametrize(
    ("config", "dtype", "block_size", "num_boundaries"),
    [(gemma3(), "float32", 32, len(PIECES)), (qwen3_next(), "bfloat16", 128, 6)],
    ids=["Gemma 3", "Qwen3-Next"],
)
def test_a_fold_computes_its_suffix_and_less_than_a_block(
    config: PretrainedConfig, dtype: str, block_size: int, num_boundaries: int, tmp_path: Path
) -> None:
    """The block is that of the prefix cache. With recurrent states it is as large as one of them.

    Those are kept behind each piece, too, where a move may begin. Here two of the places are shared.
    """
    settings: dict[str, Any] = {**TINY_SETTINGS, "dtype": dtype} | ({"block_size": 32} if block_size == 32 else {})
    with start_engine(save_random(config, tmp_path / "model"), plugin={}, own_process=False, **settings) as engine:
        for number, (start, end) in enumerate(PIECES):
            served = ask(engine, HISTORY, f"s{number}", FOLDABLE)
            assert served.receipt is not None
            boundaries = served.receipt["edit_boundaries"]
            assert boundaries["kept"] == boundaries["wanted"] == num_boundaries
            assert boundaries["kv_bytes"] > 0
            context = [*cut(HISTORY, start, end, MARKER), *NEW]
            folded = ask(engine, context, f"s{number}")
            assert folded.receipt is not None
            assert start - block_size < folded.receipt["kept_tokens"] <= start
            assert folded.receipt["moved_tokens"] == 0
            engine.llm.reset_prefix_cache()
            fresh = ask(engine, context, "fresh")
            assert fresh.receipt is not None
            assert fresh.receipt["kept_tokens"] == 0
            assert folded.distance(fresh) <= MAX_DIFFERENCE
            assert folded.token_ids == fresh.token_ids
            engine.llm.reset_prefix_cache()
        # Control: where no piece is named, vLLM keeps nothing in front of a fold.
        ask(engine, HISTORY, "control")
        assert ask(engine, [*cut(HISTORY, *PIECES[2], MARKER), *NEW], "control").receipt["kept_tokens"] == 0  # type: ignore[index]


def test_an_answer_is_kept_with_its_windows(tmp_path: Path) -> None:
    """vLLM keeps a window where a prompt ended. A session's next prompt goes on behind the answer."""
    path = save_random(gemma3(), tmp_path / "model")
    with start_engine(path, plugin={}, own_process=False, block_size=32, **TINY_SETTINGS) as engine:
        said = engine.ask(HISTORY, "s", max_tokens=100).token_ids
        context = [*HISTORY, *said, *NEW]
        again = engine.ask(context, "s")
        assert again.receipt is not None
        assert again.receipt["kept_tokens"] == len(HISTORY) + len(said) - 1
        engine.llm.reset_prefix_cache()
        assert again.distance(engine.ask(context, "fresh")) <= MAX_DIFFERENCE
