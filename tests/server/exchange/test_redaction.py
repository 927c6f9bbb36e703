"""A redaction on several engines: all of them forget first, or the request is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from acmserve.errors import Unavailable
from acmserve.plan.request import SessionParams
from acmserve.server.exchange.exchange import CURRENT, Exchange, tap_generate
from acmserve.server.exchange.redaction import Engines
from acmserve.server.speculation.speculator import Speculator

PROMPT = {"type": "token", "prompt_token_ids": [5, 6, 7], "cache_salt": "salt"}


@dataclass
class Output:
    finished: bool
    kv_transfer_params: dict[str, Any] | None
    outputs: tuple[()] = ()
    num_cached_tokens: int = 0
    num_cache_creation_tokens: int = 0


class Fleet:
    """Engines that write down what reaches them, in order. The `silent` ones send no receipt."""

    def __init__(self, silent: tuple[int, ...] = ()) -> None:
        self.calls: list[tuple[int | None, Any, dict[str, Any]]] = []
        self.ended: list[int | None] = []
        self._silent = silent

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, data_parallel_rank: int | None = None
    ) -> AsyncGenerator[Output, None]:
        acm = (sampling_params.extra_args or {})["kv_transfer_params"]["acm"]
        self.calls.append((data_parallel_rank, prompt, acm))
        await asyncio.sleep(0)
        self.ended.append(data_parallel_rank)
        receipt = {"computed_tokens": 3, "kept_tokens": 0, "moved_tokens": 0}
        answer = {"acm": {"session_id": acm["session_id"], "receipt": receipt}}
        yield Output(True, None if data_parallel_rank in self._silent else answer)


async def _ask(
    fleet: Fleet,
    engines: Engines,
    params: SessionParams | None,
    acm: dict[str, Any] | None = None,
    speculator: Speculator | None = None,
) -> Any:
    exchange = None if params is None else Exchange(params)
    CURRENT.set(exchange)
    sampling = SamplingParams(extra_args=None if acm is None else {"kv_transfer_params": {"acm": acm}})
    tapped = tap_generate(fleet.generate, engines=engines, speculator=speculator)
    outputs = [output async for output in tapped(PROMPT, sampling, "r")]
    assert len(outputs) == 1
    return exchange.acm if exchange is not None else None


@pytest.mark.parametrize("is_raw", [False, True], ids=["route", "raw-door"])
def test_every_engine_forgets_before_the_request_is_sent(is_raw: bool) -> None:
    """Also on a route of vLLM that passes what the client says to the engine."""
    fleet, engines = Fleet(), Engines(3, 3)
    params = SessionParams("s", "reuse", forget=True)
    acm = asyncio.run(_ask(fleet, engines, None if is_raw else params, params.as_acm() if is_raw else None))
    forgetting, (last_rank, prompt, last) = fleet.calls[:-1], fleet.calls[-1]
    assert sorted(rank for rank, _, _ in forgetting if rank is not None) == [0, 1, 2]
    assert [sent["forget"] and sent["session_id"] == "s" for _, _, sent in forgetting] == [True] * 3
    assert {sent["cache_salt"] for _, sent, _ in forgetting} == {"salt"}, "the owner of a session has the salt"
    assert (last_rank, prompt, last["fidelity"], last["forget"]) == (None, PROMPT, "reuse", True)
    assert fleet.ended[-1] is None
    assert is_raw or acm["forgotten_by"] == 3


def test_every_engine_forgets_on_a_server_that_drafts_by_default() -> None:
    """A request behind a redaction gets no draft, and is sent as it would be without drafts."""
    fleet = Fleet()
    speculator = Speculator(fleet.generate, lambda: None, 4096, by_default=True, num_engines=3)
    acm = asyncio.run(_ask(fleet, Engines(3, 3), SessionParams("s", forget=True), speculator=speculator))
    assert sorted(rank for rank, _, _ in fleet.calls[:-1] if rank is not None) == [0, 1, 2]
    assert (acm["forgotten_by"], acm["speculation"]["reason"]) == (3, "session: something was redacted")
    with pytest.raises(VLLMValidationError, match="reaches 1 of 3 engines"):
        asyncio.run(_ask(Fleet(), Engines(3, 1), SessionParams("s", forget=True), speculator=speculator))


def test_the_session_hears_when_the_request_itself_goes_to_an_engine() -> None:
    """Its prompt still has what was redacted while the engines forgot, and brings it to one of them again."""
    fleet = Fleet()

    async def ask() -> None:
        CURRENT.set(Exchange(SessionParams("s", forget=True), on_send=lambda: fleet.ended.append(-1)))
        tapped = tap_generate(fleet.generate, engines=Engines(2, 2))
        assert len([output async for output in tapped(PROMPT, SamplingParams(), "r")]) == 1

    asyncio.run(ask())
    assert fleet.ended == [-1, 0, 1, -1, None]


def test_an_engine_that_does_not_acknowledge_ends_the_request() -> None:
    fleet = Fleet(silent=(1,))
    with pytest.raises(Unavailable, match="1 of 2 engines did not acknowledge"):
        asyncio.run(_ask(fleet, Engines(2, 2), SessionParams("s", forget=True)))
    assert None not in fleet.ended, "the request itself was not sent"


def test_a_server_that_reaches_some_engines_refuses() -> None:
    fleet = Fleet()
    with pytest.raises(VLLMValidationError, match="reaches 1 of 4 engines") as refused:
        asyncio.run(_ask(fleet, Engines(4, 1), SessionParams("s", forget=True)))
    assert refused.value.parameter == "kv_transfer_params.acm.forget"
    assert fleet.calls == []


@pytest.mark.parametrize(("engines", "forget"), [(Engines(), True), (Engines(2, 2), False), (Engines(4, 1), False)])
def test_other_requests_are_sent_once(engines: Engines, forget: bool) -> None:
    fleet = Fleet()
    acm = asyncio.run(_ask(fleet, engines, SessionParams("s", forget=forget)))
    assert [rank for rank, _, _ in fleet.calls] == [None]
    assert "forgotten_by" not in acm


@pytest.mark.parametrize(
    ("local_only", "engines"), [(False, Engines(4, 4)), (True, Engines(4, 2))], ids=["internal", "external"]
)
def test_engines_are_counted_as_vllm_balances(local_only: bool, engines: Engines) -> None:
    config = SimpleNamespace(data_parallel_size=4, data_parallel_size_local=2, local_engines_only=local_only)
    assert Engines.of(config) == engines
