"""The tap on the engine client: what goes in, what comes out, who sees whose."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.engine.protocol import StreamingInput
from vllm.exceptions import VLLMValidationError

from acmserve.context.storage.session_store import SessionStore
from acmserve.errors import InvalidRequest
from acmserve.plan.request import SCORED_TOKENS, SessionParams
from acmserve.server.budget.rates import Rates
from acmserve.server.exchange.exchange import CURRENT, Exchange, tap_generate
from acmserve.server.exchange.map_slot import MapSlots, Slot
from acmserve.server.exchange.served_prompts import ServedContext, ServedContexts
from acmserve.server.http.tenants import CALLER, ApiKeys, CallerMiddleware, Tenants, account_of
from acmserve.server.options.session_params import find_named
from acmserve.server.sessions.sessions import Sessions


@pytest.fixture(scope="module")
def tokenizer(smollm2_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2_folder)


@dataclass
class Output:
    text: str
    finished: bool
    kv_transfer_params: dict[str, Any] | None = None
    num_cached_tokens: int | None = 16
    num_cache_creation_tokens: int | None = 32


RECEIPT = {"prompt_tokens": 50, "kept_tokens": 20, "moved_tokens": 10, "computed_tokens": 20}


class Engine:
    """Echoes the arguments it got beside the receipt of the second, last output."""

    def __init__(self) -> None:
        self.calls: list[tuple[SamplingParams, dict[str, Any]]] = []

    async def generate(
        self, prompt: str, sampling_params: SamplingParams, request_id: str, **kwargs: Any
    ) -> AsyncGenerator[Output, None]:
        self.calls.append((sampling_params, kwargs))
        yield Output(prompt, finished=False)
        await asyncio.sleep(0)
        transfer = (sampling_params.extra_args or {}).get("kv_transfer_params")
        if transfer is not None and "acm" in transfer:
            transfer = transfer | {"acm": transfer["acm"] | {"receipt": RECEIPT}}
        yield Output(prompt, finished=True, kv_transfer_params=transfer)


async def read(outputs: AsyncGenerator[Output, None]) -> list[Output]:
    return [output async for output in outputs]


def test_session_goes_in_beside_other_arguments_and_the_receipt_comes_out_once() -> None:
    engine = Engine()
    params = SamplingParams(extra_args={"kv_transfer_params": {"do_remote_decode": False}, "other": 1})

    async def request() -> tuple[Exchange, list[Output]]:
        exchange = Exchange(SessionParams("s", "reuse"))
        CURRENT.set(exchange)
        return exchange, await read(tap_generate(engine.generate)("p", params, "r", session_id="s"))

    exchange, outputs = asyncio.run(request())
    acm = {"session_id": "s", "fidelity": "reuse"}
    assert engine.calls[0][0].extra_args == {
        "kv_transfer_params": {"do_remote_decode": False, "acm": acm},
        "other": 1,
    }
    assert engine.calls[0][1] == {"session_id": "s"}
    assert exchange.finished
    assert exchange.acm == acm | {"receipt": RECEIPT}
    assert [(o.num_cached_tokens, o.num_cache_creation_tokens) for o in outputs] == [(16, 32), (30, 18)]
    assert [o.kv_transfer_params for o in outputs] == [None, {"do_remote_decode": False}]


def test_requests_at_the_same_time_keep_their_own_receipts() -> None:
    engine = Engine()

    async def request(session_id: str) -> Exchange:
        exchange = Exchange(SessionParams(session_id))
        CURRENT.set(exchange)
        await asyncio.create_task(read(tap_generate(engine.generate)("p", SamplingParams(), session_id)))
        return exchange

    async def both() -> list[Exchange]:
        return await asyncio.gather(*(request(name) for name in ("a", "b", "c")))

    assert [e.acm for e in asyncio.run(both())] == [
        {"session_id": name, "receipt": RECEIPT} for name in ("a", "b", "c")
    ]


def test_request_without_session_gets_the_very_generator_of_the_engine() -> None:
    engine = Engine()
    params = SamplingParams()

    async def request() -> list[Output]:
        outputs = tap_generate(engine.generate)("p", params, "r")
        assert getattr(outputs, "__name__", "") == "generate"
        return await read(outputs)

    assert [o.kv_transfer_params for o in asyncio.run(request())] == [None, None]
    assert params.extra_args is None


@pytest.mark.parametrize(
    ("transfer", "field"),
    [
        ({"acm": {"session_id": 5}}, "kv_transfer_params.acm.session_id"),
        ({"acm": {"session_id": ""}}, "kv_transfer_params.acm.session_id"),
        ({"acm": {"session_id": "x" * 257}}, "kv_transfer_params.acm.session_id"),
        ({"acm": {"session_id": "s", "fidelity": "best"}}, "kv_transfer_params.acm.fidelity"),
        ({"acm": None}, "kv_transfer_params.acm"),
        ("acm", "kv_transfer_params"),
    ],
)
def test_invalid_session_of_any_other_route_never_reaches_the_engine(transfer: object, field: str) -> None:
    engine = Engine()
    params = SamplingParams(extra_args={"kv_transfer_params": transfer})
    with pytest.raises(VLLMValidationError) as refused:
        tap_generate(engine.generate)("p", params, "r", session_id="s")
    assert refused.value.parameter == field
    assert engine.calls == []


@pytest.mark.parametrize("given", ["s", "x" * 256, "x" * 257, "\ud800", "", " ", "a\tb"])
def test_a_header_that_vllm_takes_names_the_same_session_on_every_route(given: str) -> None:
    """An id of more than 256 characters was answered with 400 on the routes without receipts."""
    engine = Engine()
    params = SamplingParams()
    asyncio.run(read(tap_generate(engine.generate, tenants=Tenants(False))("p", params, "r", session_id=given)))
    named = find_named({}, {"x-session-id": given})
    sent = engine.calls[0][0].extra_args or {}
    assert sent.get("kv_transfer_params") == (None if named is None else {"acm": {"session_id": named.session_id}})


@pytest.mark.parametrize("transfer", ["acm", [1, 2], ["ab"], 7])
def test_what_a_session_cannot_stand_beside_never_reaches_the_engine(transfer: object) -> None:
    """vLLM puts what a client says in `vllm_xargs` where its own object stands."""
    engine = Engine()

    async def request() -> None:
        CURRENT.set(Exchange(SessionParams("s")))
        tap_generate(engine.generate)("p", SamplingParams(extra_args={"kv_transfer_params": transfer}), "r")

    with pytest.raises(VLLMValidationError) as refused:
        asyncio.run(request())
    assert refused.value.parameter == "kv_transfer_params"
    assert engine.calls == []


@pytest.mark.parametrize("name", [SCORED_TOKENS, "acm_of_a_later_release"])
@pytest.mark.parametrize("exchange", [None, Exchange(SessionParams("s"))], ids=["no session", "session"])
def test_what_the_server_alone_says_to_the_engine_is_taken_from_no_client(name: str, exchange: Exchange | None) -> None:
    """Rows of the log probabilities that the client asked for would be missing, and its answer was a 500."""
    engine = Engine()

    async def request() -> None:
        CURRENT.set(exchange)
        tap_generate(engine.generate)("p", SamplingParams(prompt_logprobs=1, extra_args={"a": 1, name: 2}), "r")

    with pytest.raises(VLLMValidationError, match="begin with 'acm_'") as refused:
        asyncio.run(request())
    assert refused.value.parameter == f"vllm_xargs.{name}"
    assert engine.calls == []


def test_a_route_without_receipts_takes_no_field_that_the_server_sets() -> None:
    """A request that a client calls a draft would be in no count, and a level of its own would pass the calibration."""
    engine, tenants = Engine(), Tenants(has_api_keys=True)
    sent = {"session_id": "s", "fidelity": "auto", "level": "every", "draft": True, "unrecorded": True}

    async def request() -> None:
        CURRENT.set(None)
        CALLER.set({"authorization": "Bearer a"})
        params = SamplingParams(extra_args={"kv_transfer_params": {"acm": sent}})
        await read(tap_generate(engine.generate, 100, tenants)({}, params, "r"))

    asyncio.run(request())
    acm = (engine.calls[0][0].extra_args or {})["kv_transfer_params"]["acm"]
    assert acm.keys() == {"session_id", "account", "fidelity", "unrecorded"}


def test_a_slot_is_filled_and_never_served_unfilled(tokenizer: Any) -> None:
    slots = MapSlots(tokenizer)
    exchange = Exchange(
        SessionParams("s"), served=lambda: ServedContext(tokenizer), slot=Slot(slots, "388 records", 64)
    )
    prompt = tokenizer.encode(f"Map:\n{slots.placeholder(64)}\nGo on.")
    sent = exchange.prepare({"type": "token", "prompt_token_ids": prompt}, 10_000)
    assert "Map:\n" in tokenizer.decode(sent["prompt_token_ids"])
    assert "388 records\n" in tokenizer.decode(sent["prompt_token_ids"])
    assert len(sent["prompt_token_ids"]) < len(prompt)
    with pytest.raises(InvalidRequest, match="'head' needs a prompt of text alone"):
        exchange.prepare({"type": "multimodal", "prompt_token_ids": prompt}, 10_000)


def test_whoever_waits_for_the_receipt_is_told_once_a_request() -> None:
    """The engine says it with every output of a stream. A tool loop of /v1/responses passes the engine again."""
    told: list[tuple[int, float]] = []
    exchange = Exchange(
        SessionParams("s"), on_receipt=lambda receipt, seconds: told.append((receipt["prompt_tokens"], seconds))
    )
    for num_tokens in (7, 9):
        exchange.send(SamplingParams())
        for number in range(3):
            acm = {"session_id": "s", "receipt": RECEIPT | {"prompt_tokens": num_tokens}}
            exchange.receive(Output("", number == 2, {"acm": acm}))
    assert [num_tokens for num_tokens, _ in told] == [7, 9]
    assert all(seconds >= 0 for _, seconds in told)


@pytest.mark.parametrize("claimed", [None, "somebody else"])
def test_every_salt_of_a_key_counts_for_its_account(claimed: str | None) -> None:
    """Whatever account the client claims. The names of the sessions stay apart."""
    engine, tenants = Engine(), Tenants(has_api_keys=True)

    async def send(key: str, salt: str | None) -> dict[str, Any]:
        CALLER.set({"authorization": f"Bearer {key}"})
        params = SamplingParams(extra_args={"kv_transfer_params": {"acm": {"session_id": "s", "account": claimed}}})
        await read(tap_generate(engine.generate, 100, tenants)({"cache_salt": salt}, params, "r"))
        sent: dict[str, Any] = (engine.calls[-1][0].extra_args or {})["kv_transfer_params"]["acm"]
        return sent

    sent = [asyncio.run(send(key, salt)) for key, salt in (("a", None), ("a", "x"), ("a", "y"), ("b", "x"))]
    accounts = [acm["account"] for acm in sent]
    assert accounts[0] == accounts[1] == accounts[2] != accounts[3]
    assert len({acm["session_id"] for acm in sent}) == 4
    assert claimed not in accounts


def test_input_that_is_streamed_has_the_salt_of_its_key_too() -> None:
    """It comes through a websocket, whose headers say the key."""
    engine, tenants = Engine(), Tenants(has_api_keys=True)
    heard: list[Any] = []

    async def pieces() -> AsyncGenerator[StreamingInput, None]:
        for number in range(2):
            yield StreamingInput(prompt=cast(Any, {"type": "token", "prompt_token_ids": [number]}))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        (first, _) = await read(tap_generate(engine.generate, 100, tenants)(pieces(), SamplingParams(), "r"))
        prompt: Any = first.text
        heard.extend([piece.prompt async for piece in prompt])

    for key in "ab":
        for salt in (b"", b"s1"):
            headers = [(b"authorization", f"Bearer {key}".encode()), (b"x-cache-salt", salt)]
            scope = {"type": "websocket", "headers": headers}
            asyncio.run(CallerMiddleware(app)(scope, cast(Any, None), cast(Any, None)))
    assert [prompt["prompt_token_ids"] for prompt in heard] == [[0], [1]] * 4
    salts = [prompt["cache_salt"] for prompt in heard]
    assert salts[::2] == salts[1::2]
    assert len(set(salts)) == 4
    assert all(salts)


def salt_sent(headers: dict[str, str], prompt: Any, exchange: Exchange | None, *, known: ApiKeys | None = None) -> Any:
    """The salt with which a prompt of this request reaches the engine."""
    engine, tenants = Engine(), Tenants(has_api_keys=True, known=known)

    async def request() -> Any:
        CURRENT.set(exchange)
        CALLER.set(headers)
        (first, _) = await read(tap_generate(engine.generate, 100, tenants)(prompt, SamplingParams(), "r"))
        return first.text

    return asyncio.run(request()).get("cache_salt")


@pytest.mark.parametrize("in_session", [False, True], ids=["plain", "session"])
def test_the_salt_of_the_header_is_that_of_the_prompt(in_session: bool) -> None:
    """It named the tenant alone: one salt's session found in the cache what another's had sent."""

    def sent(header: str | None, body: str | None = None) -> Any:
        headers = {} if header is None else {"x-cache-salt": header}
        prompt = {} if body is None else {"cache_salt": body}
        return salt_sent(headers, prompt, Exchange(SessionParams("s")) if in_session else None)

    assert sent("s1") == sent(None, "s1") == sent("s2", "s1") == "s1"
    assert sent("s2") == "s2"
    assert sent(None) is sent("") is None
    odd = sent("a/b")
    assert re.fullmatch("[0-9a-f]{32}", odd), "vLLM takes no slash"
    assert len({odd, sent("a/c"), sent("x" * 129), sent("x" * 128)}) == 4


def test_the_salt_of_the_header_counts_beside_that_of_the_key() -> None:
    keyed = {"authorization": "Bearer a"}
    account = account_of(Tenants(has_api_keys=True).of(keyed))
    for exchange in (None, Exchange(SessionParams("s", account=account))):
        salts = [salt_sent(keyed | more, {}, exchange) for more in ({}, {"x-cache-salt": "s1"}, {"x-cache-salt": "s2"})]
        assert len(set(salts)) == 3
        assert "s1" not in salts
        assert salts[1] == salt_sent(keyed, {"cache_salt": "s1"}, exchange)


def test_a_key_that_the_server_does_not_know_is_nobodys() -> None:
    """Some routes of vLLM ask for none. Each made-up key was an account, and took its share from the others."""
    known = ApiKeys(["a", "b"])
    tenants = Tenants(has_api_keys=True, known=known)
    trusting = Tenants(has_api_keys=True)
    assert len(known) == 2
    for real in ("Bearer a", "bearer b"):
        assert tenants.of({"authorization": real}) == trusting.of({"authorization": real}) != ""
    for forged in ("Bearer x1", "Bearer ", "Bearer", "a", "Basic a", "Bearer a ", ""):
        assert tenants.of({"authorization": forged}) == ""
        assert account_of(tenants.of({"authorization": forged}, "salt")) == ""
    assert salt_sent({"authorization": "Bearer x1"}, {}, None, known=known) is None
    assert salt_sent({"authorization": "Bearer a"}, {}, None, known=known)
    assert not {"a", "b"} & {value for value in vars(known).values() if isinstance(value, str)}


def test_a_session_and_its_background_requests_count_for_the_account_of_its_key(tokenizer: Any) -> None:
    store = SessionStore()
    sessions = Sessions(store, ServedContexts(tokenizer), Rates(), has_api_keys=True)
    tenant = sessions.tenant_of({"authorization": "Bearer a"}, "salt")
    session = store.open(tenant, "s")
    exchange = sessions.exchange(session, SessionParams("s"), ())
    background = sessions.background_exchange(session, (), 0)
    key_alone = sessions.tenant_of({"authorization": "Bearer a"})
    assert exchange.params.account == background.params.account == account_of(tenant) == key_alone
