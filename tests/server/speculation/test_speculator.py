"""Speculative exactness over an engine of two minds: the answer is that of `exact`, whatever the draft says."""

from __future__ import annotations

import asyncio
import random
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from acmserve.plan.request import SessionParams
from acmserve.server.app import startup
from acmserve.server.app.startup import find_draft_refusal
from acmserve.server.speculation.speculator import (
    FAILED,
    NOT_EDITED,
    NOT_MOVED,
    OTHER_TOKEN,
    TOO_SHORT,
    EngineCall,
    Speculator,
)
from tests.support.speculation.two_minds import STOP, TwoMinds, exact_token

PROMPT = [11 * at % 251 for at in range(200)]
DELTA, CUMULATIVE, FINAL_ONLY = RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY


def call(params: SessionParams, max_tokens: int, num_cut_off: int | None = 900, **sampling: Any) -> EngineCall:
    extra = {"kv_transfer_params": {"acm": params.as_acm()}}
    wanted: dict[str, Any] = {"temperature": 0, "output_kind": DELTA, "detokenize": False} | sampling
    made = SamplingParams(max_tokens=max_tokens, extra_args=extra, **wanted)
    return EngineCall(params, {"type": "token", "prompt_token_ids": PROMPT}, made, "r", num_cut_off, {})


def answer_of(max_tokens: int) -> list[int]:
    """What `exact` says, by definition."""
    tokens = list(PROMPT)
    while len(tokens) - len(PROMPT) < max_tokens and tokens[-1] != STOP:
        tokens.append(exact_token(tokens))
    return tokens[len(PROMPT) :]


async def read(engine: TwoMinds, asked: EngineCall, **settings: Any) -> tuple[list[Any], dict[str, Any]]:
    told: dict[str, Any] = {}
    speculator = Speculator(engine.generate, lambda: None, 4096, **settings)
    sent = speculator.answer(asked, told.update) or engine.generate(asked.prompt, asked.sampling, asked.request_id)
    outputs = [output async for output in sent]
    assert engine.open == set(), "every request was ended"
    return outputs, told["speculation"]


def ask(engine: TwoMinds, asked: EngineCall, **settings: Any) -> tuple[list[int], dict[str, Any], list[Any]]:
    outputs, told = asyncio.run(read(engine, asked, **settings))
    tokens = [token for output in outputs for token in output.outputs[0].token_ids]
    return tokens, told, outputs


@pytest.mark.parametrize("seed", range(60))
def test_the_answer_is_that_of_exact(seed: int) -> None:
    """Drafts of every length that go wrong anywhere, or nowhere, and answers that end anywhere."""
    rng = random.Random(seed)
    num_ahead, max_tokens = rng.randint(1, 40), rng.randint(4, 60)
    wrong = {rng.randint(200, 245) for _ in range(rng.choice([0, 0, 1, 3]))}
    engine = TwoMinds(wrong.__contains__, num_ahead)
    tokens, told, outputs = ask(engine, call(SessionParams("s"), max_tokens))
    assert tokens == answer_of(max_tokens)
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert outputs[-1].outputs[0].finish_reason == ("stop" if tokens[-1] == STOP else "length")
    first_wrong = min((place - 200 for place in wrong), default=1000)
    num_right = min(first_wrong, told["drafted_tokens"])
    assert told["accepted_tokens"] == (num_right if told["reason"] is None else 0)


def test_without_verification_the_draft_would_be_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    differs = {205}.__contains__
    assert ask(TwoMinds(differs), call(SessionParams("s"), 30))[0] == answer_of(30)
    monkeypatch.setattr(Speculator, "verifies", False)
    assert ask(TwoMinds(differs), call(SessionParams("s"), 30))[0] != answer_of(30)


def test_what_has_no_rank_is_not_accepted() -> None:
    """A token of the draft whose KV was found in the cache was not looked at by the pass."""
    differs = {203}.__contains__
    tokens, told, _ = ask(TwoMinds(differs, num_cached_drafts=6), call(SessionParams("s"), 30))
    assert tokens == answer_of(30)
    assert told["accepted_tokens"] == 1, "the first one was compared, the others were not"


@pytest.mark.parametrize("kind", [CUMULATIVE, FINAL_ONLY])
def test_whole_answers(kind: RequestOutputKind) -> None:
    _, told, outputs = ask(TwoMinds(), call(SessionParams("s"), 30, output_kind=kind))
    assert list(outputs[-1].outputs[0].token_ids) == answer_of(30)
    assert len(outputs) == (1 if kind is FINAL_ONLY else len(answer_of(30)))
    assert told == {"drafted_tokens": 20, "accepted_tokens": 20, "reason": None}


def test_a_draft_leaves_no_source_and_the_receipt_is_that_of_the_exact_request() -> None:
    engine = TwoMinds({210}.__contains__)
    _, _, outputs = ask(engine, call(SessionParams("s", "exact"), 30))
    assert engine.names == ["draft", "exact", "verify", "rest"]
    assert engine.params["draft"][0] == {"session_id": "s", "fidelity": "reuse", "draft": True, "unrecorded": True}
    for name in ("exact", "verify", "rest"):
        assert engine.params[name][0] == {"session_id": "s", "fidelity": "exact"}
    receipts = [output.kv_transfer_params["acm"]["receipt"] for output in outputs]
    assert all(receipt["prompt_tokens"] == 200 and receipt["moved_tokens"] == 0 for receipt in receipts)


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (TwoMinds(num_ahead=2), TOO_SHORT),
        (TwoMinds({200}.__contains__), OTHER_TOKEN),
        (TwoMinds(moves=0), NOT_MOVED),
    ],
)
def test_a_draft_of_no_use_is_dropped(engine: TwoMinds, reason: str) -> None:
    tokens, told, _ = ask(engine, call(SessionParams("s"), 30))
    assert tokens == answer_of(30)
    assert (told["accepted_tokens"], told["reason"]) == (0, reason)
    assert "verify" not in engine.names


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (call(SessionParams("s"), 30, num_cut_off=0), NOT_EDITED),
        (call(SessionParams("s", "reuse", speculate=True), 30), "fidelity: reuse"),
        (call(SessionParams("s", forget=True), 30), "redacted"),
        (call(SessionParams("s"), 2), "max_tokens"),
        (call(SessionParams("s"), 30, temperature=0.5), "temperature is 0.5"),
        (call(SessionParams("s"), 30, logprobs=1), "logprobs"),
        (call(SessionParams("s"), 30, prompt_logprobs=1), "prompt_logprobs"),
        (call(SessionParams("s"), 30, repetition_penalty=1.1), "repetition_penalty"),
        (call(SessionParams("s"), 30, min_tokens=3), "min_tokens"),
        (call(SessionParams("s"), 30, logit_bias={1: 2.0}), "logit_bias"),
        (call(SessionParams("s"), 30, structured_outputs=StructuredOutputsParams(regex="a")), "structured_outputs"),
    ],
)
def test_what_is_not_verified_is_answered_without_a_draft(asked: EngineCall, reason: str) -> None:
    engine = TwoMinds()
    tokens, told, _ = ask(engine, asked)
    assert (tokens, engine.names) == (answer_of(asked.sampling.max_tokens), ["exact"])
    assert reason in told["reason"]


def test_several_engines_and_processors_refuse() -> None:
    for settings in ({"num_engines": 2}, {"refusal": "engine: 2 processors"}):
        engine = TwoMinds()
        _, told, _ = ask(engine, call(SessionParams("s"), 30), **settings)
        assert engine.names == ["exact"]
        assert told["reason"].startswith("engine: 2")


def test_the_first_token_is_shown_before_the_pass_that_verifies_the_others() -> None:
    async def begin() -> list[str]:
        engine = TwoMinds()
        outputs = Speculator(engine.generate, lambda: None, 4096).answer(call(SessionParams("s"), 30), lambda _: None)
        assert outputs is not None
        await anext(outputs)
        names = list(engine.names)
        await outputs.aclose()
        return names

    assert asyncio.run(begin()) == ["draft", "exact"]


def test_an_answer_that_has_hardly_room_is_not_drafted() -> None:
    """The prompt leaves two tokens of the model's window, whatever is asked for."""
    engine, asked = TwoMinds(), call(SessionParams("s"), 30)
    told: dict[str, Any] = {}
    assert Speculator(engine.generate, lambda: None, len(PROMPT) + 2).answer(asked, told.update) is None
    assert told["speculation"]["reason"].startswith("max_tokens")


@pytest.mark.parametrize("num_before_failure", [0, 1, 10])
def test_a_draft_that_fails_costs_no_answer(num_before_failure: int) -> None:
    engine = TwoMinds(fails_draft_at=num_before_failure)
    tokens, told, _ = ask(engine, call(SessionParams("s"), 30))
    assert tokens == answer_of(30)
    assert (told["accepted_tokens"], told["reason"]) == (0, FAILED)
    assert "verify" not in engine.names


@pytest.mark.parametrize(("name", "num_shown"), [("exact", 0), ("verify", 1)])
def test_an_engine_that_ends_a_request_by_itself_ends_the_answer(name: str, num_shown: int) -> None:
    """vLLM does so when it is paused. A request in its place would wait for as long as the pause takes."""
    engine = TwoMinds(aborts=name)
    tokens, _, outputs = ask(engine, call(SessionParams("s"), 30))
    assert tokens == answer_of(30)[:num_shown]
    assert (outputs[-1].finished, outputs[-1].outputs[0].finish_reason) == (True, "abort")
    assert "rest" not in engine.names


@pytest.mark.parametrize("says", [None, "logits processors", "processors of its own", "fast", "adapters"])
def test_an_engine_that_cannot_verify_is_never_asked(says: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fast prefill, or with adapters, the pass that verifies would end the engine.

    vLLM loads logits processors that are named, and those that are installed.
    """
    processor = EntryPoint("p", "m:P", "vllm.logits_processors")
    installed = {processor.group: [processor]} if says == "processors of its own" else {}
    monkeypatch.setattr(startup, "entry_points", lambda *, group: installed.get(group, []))
    model = SimpleNamespace(logits_processors=["m:P"] if says == "logits processors" else None)
    cache = SimpleNamespace(kv_sharing_fast_prefill=says == "fast")
    config = SimpleNamespace(cache_config=cache, lora_config=SimpleNamespace() if says == "adapters" else None)
    refusal = find_draft_refusal(model, config)
    assert refusal is None if says is None else says in (refusal or "")
    engine = TwoMinds()
    assert ask(engine, call(SessionParams("s"), 30), refusal=refusal)[0] == answer_of(30)
    assert ("verify" in engine.names) is (says is None)


@pytest.mark.parametrize("num_read", [0, 1, 12])
def test_a_client_that_leaves_ends_every_request(num_read: int) -> None:
    async def leave() -> TwoMinds:
        engine = TwoMinds(num_ahead=10, is_prefilling=num_read == 0)
        outputs = Speculator(engine.generate, lambda: None, 4096).answer(
            call(SessionParams("s"), 30), lambda fields: None
        )
        assert outputs is not None
        if num_read == 0:
            waiting = asyncio.create_task(anext(outputs))
            while engine.open != {"draft", "exact"}:
                await asyncio.sleep(0.001)
            waiting.cancel()
            await asyncio.wait([waiting])
        for _ in range(num_read):
            await anext(outputs)
        await outputs.aclose()
        return engine

    assert asyncio.run(leave()).open == set()


@pytest.mark.parametrize(
    ("speculate", "by_default", "fidelity", "expected"),
    [
        (None, False, None, False),
        (True, False, None, True),
        (False, True, None, False),
        (None, True, "exact", True),
        (None, True, None, True),
        (None, True, "reuse", False),
    ],
)
def test_who_gets_a_draft(speculate: bool | None, by_default: bool, fidelity: str | None, expected: bool) -> None:
    speculator = Speculator(TwoMinds().generate, lambda: None, 4096, by_default=by_default)
    assert speculator.is_wanted(SessionParams("s", fidelity, speculate=speculate)) is expected
