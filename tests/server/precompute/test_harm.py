"""When an answer is judged, by which requests, and what is kept of it. An object stands for the engine."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from contextvars import copy_context
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from vllm import SamplingParams
from vllm.logprobs import Logprob

from acmserve.context.session.precompute_options import PrecomputeOptions
from acmserve.context.storage.session_store import SessionStore
from acmserve.errors import IntegrityError, InvalidRequest, Unavailable
from acmserve.plan.harm.level import AutoLevel, ladder_of
from acmserve.server.app import startup
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.exchange import CURRENT
from acmserve.server.exchange.scores import PromptScores, ScoredAnswer
from acmserve.server.exchange.served_prompts import ServedContexts
from acmserve.server.options.config import ContextConfig
from acmserve.server.options.harm import HarmMode, parse_harm
from acmserve.server.precompute.harm import estimates as module
from acmserve.server.precompute.harm import levels as levels_module
from acmserve.server.precompute.harm.estimates import HarmEstimates
from acmserve.server.precompute.harm.levels import AutoLevels
from acmserve.server.precompute.harm.probe import MAX_NAMES, HarmProbe
from acmserve.server.precompute.precomputer import PAUSE_SECONDS
from acmserve.server.vllm.model_names import ASKED_NAME
from tests.server.precompute.test_precomputer import Client, Engine
from tests.support.instant_loop import run_instantly
from tests.support.server.acm_app import FirstSentence, Words, WordVectors

ANSWER = ScoredAnswer((7, 8, 9), (-0.1, -0.2, -0.3))
EXACT = -1.0


class Judge(Engine):
    """Has every token of a prompt at a log probability of -1. `kept` tokens of it are in the cache."""

    kept = 0

    def __init__(self) -> None:
        super().__init__()
        self.prompts: list[list[int] | None] = []

    async def __call__(self, body: Mapping[str, Any]) -> None:
        exchange = CURRENT.get()
        assert exchange is not None
        scores = exchange.scores
        self.prompts.append(None if scores is None else list(scores.prompt or ()))
        await super().__call__(body)
        assert exchange.acm is not None
        exchange.acm["receipt"] |= {"moved_tokens": 0, "kept_tokens": self.kept}
        if isinstance(scores, PromptScores):
            scores.ask(SamplingParams())
            rows = [{token: Logprob(EXACT)} for token in scores.prompt]
            scores.take(SimpleNamespace(prompt_logprobs=rows, outputs=[]), in_deltas=False)


class Talker(Client):
    """Its answers come with log probabilities. `levels` are those that its requests asked for."""

    answer = ANSWER

    def __init__(self, server: ContextServer, **body: Any) -> None:
        super().__init__(server, **body)
        self.levels: list[str | None] = []

    def _serve(self) -> None:
        super()._serve()
        exchange = CURRENT.get()
        assert exchange is not None
        assert exchange.served is not None
        served = exchange.served()
        self.levels.append(exchange.params.level)
        if self.server.default_fidelity == "auto" and served.last is not None:
            served.last = replace(served.last, fidelity="auto")
        served.scored = self.answer if exchange.scores is not None else None


def make_server(engine: Judge, harm: HarmMode = HarmMode.MEASURE, fidelity: str = "reuse") -> ContextServer:
    words: Any = Words()
    precompute = PrecomputeOptions("heal", 0.2)
    parts = (SessionStore(), words, FirstSentence(), WordVectors(), ServedContexts(words))
    return ContextServer(*parts, background=engine, precompute=precompute, harm=harm, default_fidelity=fidelity)


def judged(engine: Judge, server: ContextServer, moves: list[dict[str, int]]) -> None:
    async def scene() -> None:
        client = Talker(server, cache_salt="salt", tools=[{"a": 1}])
        client.moves = moves
        await client.ask("one two three four")
        await asyncio.sleep(10 * PAUSE_SECONDS)

    run_instantly(scene())


def harm_of(ratio: float) -> float:
    return math.exp(-ratio) - 1 + ratio


MOVED = [{"dst_start": 1, "num_tokens": 2}]


def test_an_answer_under_moved_kv_is_judged_in_front_of_its_heal() -> None:
    engine = Judge()
    server = make_server(engine)
    judged(engine, server, MOVED)
    prompt = [0, 1, 2, 3]
    assert engine.prompts == [prompt[:-1], [*prompt, *ANSWER.token_ids], None]
    assert all(params.precompute and params.fidelity == "exact" for params in engine.params)
    assert [body.get("cache_salt") for body in engine.bodies] == ["salt"] * 3
    assert ["tools" in body for body in engine.bodies] == [False, False, True]
    found = server.harm.of_session(("", "s"))["reuse"]
    assert (found.num_tokens, found.num_answers) == (3, 1)
    assert found.mean == pytest.approx(sum(harm_of(told - EXACT) for told in ANSWER.logprobs) / 3, abs=1e-3)
    assert server.harm.of_model("reuse", "m") == found
    assert server.sessions.served.of("", "s").scored is None
    server.harm.check_integrity()


@pytest.mark.parametrize("why", ["off", "nothing moved", "not computed", "all found"])
def test_what_is_not_judged(why: str) -> None:
    engine = Judge()
    server = make_server(engine, HarmMode.OFF if why == "off" else HarmMode.MEASURE)
    engine.fallback_reason = "precompute_kv_cache_full" if why == "not computed" else None
    engine.kept = 99 if why == "all found" else 0
    judged(engine, server, [] if why == "nothing moved" else MOVED)
    num_sent = {"off": 1, "nothing moved": 0, "not computed": 2, "all found": 3}[why]
    assert len(engine.prompts) == num_sent
    assert server.harm.of_session(("", "s")) == {}


def test_where_an_engine_refuses_the_heal_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(Judge):
        async def __call__(self, body: Mapping[str, Any]) -> None:
            exchange = CURRENT.get()
            if exchange is not None and exchange.scores is not None:
                raise Unavailable("the template wants a system message")
            await super().__call__(body)

    engine = Refusing()
    server = make_server(engine)
    logging.getLogger("vllm").addHandler(caplog.handler)
    try:
        judged(engine, server, MOVED)
    finally:
        logging.getLogger("vllm").removeHandler(caplog.handler)
    assert engine.prompts == [None]
    assert server.harm.of_session(("", "s")) == {}
    assert server.precompute.num_failed == 0
    assert "is not judged: the template wants a system message" in caplog.text


def test_of_an_answer_that_was_found_in_part_the_rest_is_judged() -> None:
    engine = Judge()
    engine.kept = 5
    server = make_server(engine)
    judged(engine, server, MOVED)
    found = server.harm.of_session(("", "s"))["reuse"]
    assert found.num_tokens == 1
    assert found.mean == pytest.approx(harm_of(ANSWER.logprobs[-1] - EXACT))


def test_a_session_that_is_gone_leaves_no_estimate_of_its_own() -> None:
    engine = Judge()
    server = make_server(engine)
    judged(engine, server, MOVED)
    server.delete(server.store.get("", "s"))
    assert server.harm.of_session(("", "s")) == {}
    assert server.harm.of_model("reuse", "m").num_answers == 1


@pytest.mark.parametrize(
    ("harm", "fidelity", "levels"),
    [
        (HarmMode.FOLLOW, "auto", [None, "careful", "exact", "exact"]),
        (HarmMode.MEASURE, "auto", [None] * 4),
        (HarmMode.FOLLOW, "reuse", [None] * 4),
    ],
)
def test_auto_follows_the_harm_of_its_own_answers(harm: HarmMode, fidelity: str, levels: list[str | None]) -> None:
    """A session falls to `exact`, and its model no lower than `careful`: another session begins there."""
    server = make_server(Judge(), harm, fidelity)
    client = Talker(server)
    client.moves, client.answer = MOVED, ScoredAnswer((7,) * 60, (-0.5,) * 60)

    async def scene() -> None:
        for _ in levels:
            await client.ask("one two three four")
            await asyncio.sleep(10 * PAUSE_SECONDS)

    run_instantly(scene())
    assert client.levels == levels
    server.auto_levels.check_integrity()
    follows = levels[-1] is not None
    assert server.auto_levels.of(("", "s"), "m").name == (levels[-1] or "default")
    assert server.auto_levels.of(("", "other"), "m").name == ("careful" if follows else "default")
    assert server.auto_levels.asked_of(("", "other"), "another") is None
    changes = {"model_name": "m", "scope": "session", "direction": "careful"}
    assert (REGISTRY.get_sample_value("acmserve:auto_level_changes_total", changes) is not None) >= follows
    server.delete(server.store.get("", "s"))
    assert server.auto_levels.of(("", "s"), "m").name == ("careful" if follows else "default")


def test_names_without_end_are_one() -> None:
    server = make_server(Judge(), HarmMode.FOLLOW, "auto")
    levels = AutoLevels(ladder_of("default"))
    probe = HarmProbe(server.sessions, server.harm, lambda session: True, levels=levels)
    assert [probe._name(f"m{number}") for number in range(MAX_NAMES)] == [f"m{number}" for number in range(MAX_NAMES)]
    assert (probe._name("m3"), probe._name("one more"), probe._name(None)) == ("m3", None, None)


def test_names_of_requests_take_no_room_before_they_are_judged() -> None:
    """Some requests for models that nobody serves had the answers of a real one counted as those of another."""
    server = make_server(Judge(), HarmMode.FOLLOW, "auto")
    probe = HarmProbe(server.sessions, server.harm, lambda session: True, levels=server.auto_levels)
    session = server.store.open("", "s")

    def ask(number: int) -> str | None:
        ASKED_NAME.set(f"nobody-{number}")
        return probe.level(session)

    assert [copy_context().run(ask, number) for number in range(MAX_NAMES)] == [None] * MAX_NAMES
    assert probe._name("adapter") == "adapter"


def test_a_level_of_another_ladder_is_found() -> None:
    levels = AutoLevels(ladder_of("default"))
    levels._models["m"] = AutoLevel(ladder_of("exact"), 0)
    with pytest.raises(IntegrityError, match="on the ladder"):
        levels.check_integrity()


def test_of_levels_those_of_a_new_session_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session at `exact` is judged no more, so it was the first to begin anew, and was harmed again."""
    monkeypatch.setattr(levels_module, "MAX_SESSIONS", 3)
    levels, ladder = AutoLevels(ladder_of("default")), ladder_of("default")
    for name in ("fallen", "used", "plain"):
        levels.note("m", ("", name), [0.0])
    levels._sessions["", "fallen"] = AutoLevel(ladder, 0)
    for number in range(5):
        assert levels.asked_of(("", "used"), "m") is None
        levels.note("m", ("", f"later-{number}"), [0.0])
    assert list(levels._sessions) == [("", "fallen"), ("", "used"), ("", "later-4")]
    assert levels.of(("", "fallen"), "m").name == "exact"
    levels.check_integrity()


def test_a_session_that_asks_is_not_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels_module, "MAX_SESSIONS", 2)
    levels, ladder = AutoLevels(ladder_of("default")), ladder_of("default")
    levels._sessions |= {("", "asks"): AutoLevel(ladder, 0), ("", "silent"): AutoLevel(ladder, 0)}
    assert levels.asked_of(("", "asks"), "m") == "exact"
    levels._sessions["", "new"] = AutoLevel(ladder, 0)
    levels.note("m", ("", "new"), [0.0])
    assert list(levels._sessions) == [("", "asks"), ("", "new")]


def test_the_session_that_was_just_judged_is_not_the_one_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside sessions that are all more careful it is the only one at the start, and could gather no evidence."""
    monkeypatch.setattr(levels_module, "MAX_SESSIONS", 2)
    levels, ladder = AutoLevels(ladder_of("default")), ladder_of("default")
    levels._sessions |= {("", "a"): AutoLevel(ladder, 0), ("", "b"): AutoLevel(ladder, 0)}
    for _ in range(2):
        levels.note("m", ("", "judged"), [0.0])
    assert list(levels._sessions) == [("", "b"), ("", "judged")]


def test_metrics_and_the_bound_on_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", 2)
    harm = HarmEstimates("served")

    def value(name: str, model: str) -> float | None:
        return REGISTRY.get_sample_value(f"acmserve:{name}", {"model_name": model, "fidelity": "auto"})

    assert (value("harm_nats", "served"), value("harm_tokens_total", "served")) == (0, 0)
    for name in ("a", "b", "c"):
        harm.note(None, ("", name), "auto", [0.5, 0.5])
    assert value("harm_nats", "served") == pytest.approx(harm_of(0.5))
    assert value("harm_tokens_total", "served") == 6
    assert [bool(harm.of_session(("", name))) for name in ("a", "b", "c")] == [False, True, True]
    harm.note("adapter", ("", "c"), "auto", [0.0])
    assert value("harm_nats", "adapter") == 0
    assert harm.of_model("auto").num_tokens == 6
    harm.check_integrity()
    harm._models.clear()
    with pytest.raises(IntegrityError, match="5 tokens of sessions under auto, 0 of models"):
        harm.check_integrity()


@pytest.mark.parametrize("why", [None, "not raw", "fast prefill", "adapters"])
def test_nothing_is_judged_where_a_prompt_tells_no_log_probabilities(
    why: str | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With adapters the requests of a step would get each other's heads, or the engine would end."""
    cache = SimpleNamespace(kv_sharing_fast_prefill=why == "fast prefill")
    config = SimpleNamespace(cache_config=cache, lora_config=SimpleNamespace() if why == "adapters" else None)
    model = SimpleNamespace(logprobs_mode="processed_logprobs" if why == "not raw" else "raw_logprobs")
    client: Any = SimpleNamespace(model_config=model, vllm_config=config)
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    with caplog.at_level(logging.INFO, logger=startup.logger.name):
        found = startup._harm_mode(ContextConfig.parse({}), client)
        assert startup._harm_mode(ContextConfig.parse({"context": {"harm": "off"}}), client) is HarmMode.OFF
    assert found is (HarmMode.FOLLOW if why is None else HarmMode.OFF)
    # By time: pytest listens at a logger that does not propagate, too, and would have each line of it twice here.
    told = {record.created for record in caplog.records if "is not measured" in record.getMessage()}
    assert len(told) == (why is not None)
    assert (why or "") in caplog.text


def test_the_setting() -> None:
    assert parse_harm("") is HarmMode.FOLLOW
    assert ContextConfig.parse({"context": {"harm": "off"}}).harm == "off"
    with pytest.raises(InvalidRequest, match=r"--boldest: 'brave' is no level\."):
        ContextConfig.parse({"context": {"boldest": "brave"}})
    with pytest.raises(InvalidRequest, match=r"--boldest: 'every' measures moves.* or 'bold'\.$"):
        ContextConfig.parse({"context": {"boldest": "every"}})
    assert ContextConfig.parse({"context": {"boldest": "bold"}}).boldest == "bold"
    with pytest.raises(InvalidRequest, match=r"--harm: 'none' is not known\..*off"):
        ContextConfig.parse({"context": {"harm": "none"}})
