"""Two data-parallel engines: after a redaction neither moves KV that has seen the redacted text."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

from acmserve.engine.config import engine_config
from acmserve.plan.request import SessionParams
from acmserve.server.exchange.exchange import CURRENT, Exchange, tap_generate
from acmserve.server.exchange.redaction import Engines
from acmserve.server.vllm.taps import Generate
from tests.support.engine.edits import Tokens, cut, text
from tests.support.engine.engine import TINY_SETTINGS
from tests.support.engine.tiny_model import TWO_LAYERS

REDACTED = text(64, "nothing of the old text")

pytestmark = pytest.mark.skipif("ACMSERVE_FLEET" not in os.environ, reason="several engine processes: `make fleet`")


async def _ask(generate: Generate, tokens: Tokens, params: SessionParams, rank: int | None = None) -> dict[str, Any]:
    """The `acm` object of one answer."""
    exchange = Exchange(params)
    CURRENT.set(exchange)
    prompt = {"type": "token", "prompt_token_ids": tokens}
    request_id = f"{params.session_id}-{rank}-{len(tokens)}-{params.forget}"
    sampling = SamplingParams(temperature=0, max_tokens=1, detokenize=False)
    async for _ in generate(prompt, sampling, request_id, data_parallel_rank=rank):
        pass
    assert exchange.acm is not None
    return exchange.acm


async def _moved_after_redaction(generate: Generate, session: str) -> Sequence[int]:
    """Tokens that each engine moves of a session's old text, after the session was redacted."""
    reuse, history = SessionParams(session, "reuse"), text(900, session)
    folded = cut(history, 200, 520, text(11, "marker"))
    for rank in range(2):
        await _ask(generate, history, reuse, rank)
    await _ask(generate, REDACTED, SessionParams(session, "reuse", forget=True))
    receipts = [(await _ask(generate, folded, reuse, rank))["receipt"] for rank in range(2)]
    return [receipt["moved_tokens"] for receipt in receipts]


async def _run(model: Path) -> tuple[Engines, Sequence[int], Sequence[int], int]:
    args: dict[str, Any] = {"dtype": "float32", "enforce_eager": True, "block_size": 32, **TINY_SETTINGS}
    llm = AsyncLLM.from_engine_args(
        AsyncEngineArgs(str(model), data_parallel_size=2, disable_log_stats=True, **args, **engine_config())
    )
    try:
        engines = Engines.of(llm.vllm_config.parallel_config)
        everywhere, alone = tap_generate(llm.generate, engines=engines), tap_generate(llm.generate)
        redacted = await _moved_after_redaction(everywhere, "everywhere")
        control = await _moved_after_redaction(alone, "one")
        acm = await _ask(everywhere, REDACTED, SessionParams("everywhere", forget=True))
        return engines, redacted, control, acm["forgotten_by"]
    finally:
        llm.shutdown()


def test_every_engine_forgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the control: a redaction that reaches one engine leaves the other as it was."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    engines, redacted, control, num_forgotten = asyncio.run(_run(TWO_LAYERS.write(tmp_path)))
    assert engines == Engines(2, 2)
    assert redacted == [0, 0]
    assert sorted(moved > 300 for moved in control) == [False, True]
    assert num_forgotten == 2
