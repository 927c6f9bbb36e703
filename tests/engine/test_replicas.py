"""Two and four data-parallel engines: a session stays with its KV, and after a redaction none moves what saw it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
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
from tests.support.server.running_server import ONE_PROCESS

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


async def _moved_after_redaction(generate: Generate, session: str, num_ranks: int) -> Sequence[int]:
    """Tokens that each engine moves of a session's old text, after the session was redacted."""
    reuse, history = SessionParams(session, "reuse"), text(900, session)
    folded = cut(history, 200, 520, text(11, "marker"))
    for rank in range(num_ranks):
        await _ask(generate, history, reuse, rank)
    await _ask(generate, REDACTED, SessionParams(session, "reuse", forget=True))
    receipts = [(await _ask(generate, folded, reuse, rank))["receipt"] for rank in range(num_ranks)]
    return [receipt["moved_tokens"] for receipt in receipts]


async def _kept_of_turns(generate: Generate, session: str, rank: int | None = None, *, is_named: bool = True) -> int:
    """Tokens that three turns keep, the second of which has folded the first. Without a name only vLLM balances."""
    history = text(600, session)
    folded = cut(history, 300, 420, text(11, "marker"))
    kept = 0
    for turn in (history, folded, [*folded, *text(90, "more")]):
        if is_named:
            receipt = (await _ask(generate, turn, SessionParams(session, "exact"), rank))["receipt"]
            kept += receipt["kept_tokens"]
        else:
            kept += await _ask_plainly(generate, turn, session)
    return kept


async def _ask_plainly(generate: Generate, tokens: Tokens, name: str) -> int:
    """Tokens of a request without a session that vLLM found in its cache."""
    CURRENT.set(None)
    sampling = SamplingParams(temperature=0, max_tokens=1, detokenize=False)
    prompt = {"type": "token", "prompt_token_ids": tokens}
    found = 0
    async for output in generate(prompt, sampling, f"{name}-{len(tokens)}"):
        found = max(found, output.num_cached_tokens or 0)
    return found


@dataclass(frozen=True)
class Kept:
    """Tokens kept in all turns of some sessions: `placed` by name, `on_one` engine, and `balanced` by vLLM."""

    placed: int
    on_one: int
    balanced: int


async def _kept(generate: Generate) -> Kept:
    """Six sessions take turns. Each of the three runs has names, and so texts, of its own."""
    totals = []
    for run, rank, is_named in (("placed", None, True), ("alone", 0, True), ("plain", None, False)):
        totals.append(sum([await _kept_of_turns(generate, f"{run}-{i}", rank, is_named=is_named) for i in range(6)]))
    return Kept(*totals)


@dataclass(frozen=True)
class Ran:
    """What the engines said: tokens moved after a redaction, by engine, and after one that reached one of them."""

    engines: Engines
    redacted: Sequence[int]
    control: Sequence[int]
    num_forgotten: int
    kept: Kept


async def _run(model: Path, num_ranks: int) -> Ran:
    args: dict[str, Any] = {"dtype": "float32", "enforce_eager": True, "block_size": 32, **TINY_SETTINGS}
    args["distributed_executor_backend"] = ONE_PROCESS
    llm = AsyncLLM.from_engine_args(
        AsyncEngineArgs(str(model), data_parallel_size=num_ranks, disable_log_stats=True, **args, **engine_config())
    )
    try:
        engines = Engines.of(llm.vllm_config.parallel_config)
        everywhere, alone = tap_generate(llm.generate, engines=engines), tap_generate(llm.generate)
        redacted = await _moved_after_redaction(everywhere, "everywhere", num_ranks)
        control = await _moved_after_redaction(alone, "one", num_ranks)
        acm = await _ask(everywhere, REDACTED, SessionParams("everywhere", forget=True))
        return Ran(engines, redacted, control, acm["forgotten_by"], await _kept(everywhere))
    finally:
        llm.shutdown()


@pytest.fixture(scope="module", params=(2, 4), ids="DP={}".format)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        return asyncio.run(_run(TWO_LAYERS.write(tmp_path_factory.mktemp("replicas")), request.param))


def test_every_engine_forgets(ran: Ran) -> None:
    """With the control: a redaction that reaches one engine leaves the other as it was."""
    num_ranks = len(ran.redacted)
    assert ran.engines == Engines(num_ranks, num_ranks)
    assert ran.redacted == [0] * num_ranks
    assert sum(moved > 300 for moved in ran.control) == num_ranks - 1
    assert ran.num_forgotten == num_ranks


def test_a_session_keeps_as_much_as_with_one_engine(ran: Ran) -> None:
    """The control: vLLM's own balancer sends the turns of a session here and there."""
    assert ran.kept.placed == ran.kept.on_one > 6 * 600
    assert ran.kept.balanced < 0.7 * ran.kept.on_one
