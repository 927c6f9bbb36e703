"""When the server computes ahead, what it sends, and what becomes of it. An object stands for the engine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.testclient import TestClient

from acmserve.context.edits.cut import cut_messages
from acmserve.context.eviction.clear_tool_uses import ClearToolUses
from acmserve.context.session.history import adopt
from acmserve.context.session.precompute_options import PrecomputeOptions
from acmserve.context.session.render import render
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.tools.batch import Edit, EditKind
from acmserve.engine.config import EngineConfig
from acmserve.errors import InvalidRequest, Unavailable
from acmserve.plan.request import SessionParams
from acmserve.server.app.flags import build_parser
from acmserve.server.app.serve import merge_kv_transfer_config
from acmserve.server.chat.loop import run_loop
from acmserve.server.chat.options import ChatRequest
from acmserve.server.chat.turn import answer_chat
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.exchange import CURRENT
from acmserve.server.exchange.served_prompts import ServedContexts
from acmserve.server.options.config import ContextConfig
from acmserve.server.options.loop_options import LoopOptions
from acmserve.server.options.session_params import check_no_loop
from acmserve.server.precompute.background_request import frame_of
from acmserve.server.precompute.precomputer import (
    BUSY_SECONDS,
    PAUSE_SECONDS,
    Precomputer,
)
from acmserve.server.precompute.watches import GONE_SECONDS, NUM_PAUSES, QUIET_SECONDS, Watch
from acmserve.server.vllm.handlers import ChatCompletionRequest
from tests.server.chat.test_steps import MESSAGES, RAW, Model, make_turn, said
from tests.support.instant_loop import run_instantly
from tests.support.server.acm_app import HISTORY, SESSIONS, FirstSentence, Words, WordVectors, make_app
from tests.support.server.asked_session import params_of

BUDGET = {"max_tokens": 900, "low_watermark": 500, "policy": "recency"}
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}


class Engine:
    """Takes background requests. `gate` keeps them waiting, `failure` is raised."""

    def __init__(self) -> None:
        self.bodies: list[Mapping[str, Any]] = []
        self.params: list[SessionParams] = []
        self.num_cut: list[int] = []
        self.gate: asyncio.Event | None = None
        self.failure: Exception | None = None
        self.num_cancelled = 0
        self.fallback_reason: str | None = None
        self.serves_others = False
        self.num_asked = 0

    def prompt_of(self, body: Mapping[str, Any]) -> list[int]:
        """A token for each word, as `Client` says that it was served."""
        return list(range(sum(len(str(message.get("content")).split()) for message in body["messages"])))

    def is_busy(self) -> bool:
        self.num_asked += 1
        return self.serves_others

    async def __call__(self, body: Mapping[str, Any]) -> None:
        exchange = CURRENT.get()
        assert exchange is not None
        self.bodies.append(body)
        self.params.append(exchange.params)
        self.num_cut.append(exchange.num_cut)
        if self.failure is not None:
            raise self.failure
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.num_cancelled += 1
                raise
        exchange.prepare({"type": "token", "prompt_token_ids": self.prompt_of(body)}, 2**20)
        receipt = {"prompt_tokens": 700, "computed_tokens": 300, "fallback_reason": self.fallback_reason}
        exchange.acm = {"receipt": receipt}


def make_server(engine: Engine, mode: str = "predict", share: float = 0.2, pool: int | None = None) -> ContextServer:
    words: Any = Words()
    return ContextServer(
        SessionStore(),
        words,
        FirstSentence(),
        WordVectors(),
        ServedContexts(words),
        background=engine,
        precompute=PrecomputeOptions(mode, share),
        pool_tokens=pool,
    )


class Client:
    """Chats of one session: vLLM's route function answers what the test says, with a receipt if it is given one."""

    def __init__(self, server: ContextServer, **body: Any) -> None:
        self.server = server
        self.body = body
        self.messages: list[Any] = []
        self.moves: list[dict[str, int]] = []

    async def ask(self, text: str, answer: str = "word " * 120, *, wait: bool = True, **acm: Any) -> None:
        self.messages.append({"role": "user", "content": text})
        body = {"model": "m", "messages": [dict(m) for m in self.messages], **self.body}
        budget = self.server.budgets.parse(acm["budget"], "acm.budget") if "budget" in acm else None
        request: Any = SimpleNamespace(continue_final_message=False)
        chat = ChatRequest(request, cast(Any, RAW), body, SessionParams("s"), "", None, budget)

        async def core(request: Any, raw_request: Any) -> Response:
            self._serve()
            message = {"role": "assistant", "content": answer}
            return JSONResponse({"choices": [{"message": message, "finish_reason": "stop"}]})

        response = await answer_chat(self.server, chat, core)
        assert response is not None
        self.messages.append({"role": "assistant", "content": answer})
        if wait:
            await asyncio.sleep(3 * PAUSE_SECONDS)

    def _serve(self) -> None:
        """What the engine's answer leaves behind."""
        exchange = CURRENT.get()
        assert exchange is not None
        assert exchange.served is not None
        num_prompt = sum(len(str(m.get("content")).split()) for m in exchange.messages)
        num_moved = sum(move["num_tokens"] for move in self.moves)
        receipt = {
            "fidelity": "reuse" if self.moves else "exact",
            "prompt_tokens": num_prompt,
            "kept_tokens": 0,
            "moved_tokens": num_moved,
            "computed_tokens": num_prompt - num_moved,
            "moves": self.moves,
        }
        exchange.served().record(exchange.messages, list(range(num_prompt)), receipt)
        assert exchange.on_receipt is not None
        exchange.on_receipt(receipt, 0.1)


def test_the_foreseen_eviction_is_sent_with_what_shapes_the_prompt_and_comes() -> None:
    engine = Engine()
    server = make_server(engine)

    async def scene() -> None:
        client = Client(server, tools=[TOOL], tool_choice="required", stop=["x"], cache_salt="salt", temperature=1.0)
        await client.ask("Begin", budget=BUDGET)
        assert engine.bodies == [], "nothing is near"
        while not engine.bodies:
            await client.ask("Go on")
        body, session = engine.bodies[-1], server.store.get("", "s")
        assert not session.state.omissions
        assert body["messages"] != render(session.state)
        assert {name: body[name] for name in body if name != "messages"} == {
            "model": "m",
            "tools": [TOOL],
            "tool_choice": "auto",
            "cache_salt": "salt",
            "add_generation_prompt": False,
            "max_tokens": 1,
            "temperature": 0,
        }
        assert engine.params[-1] == SessionParams("s", "exact", precompute=True)
        candidates = body["messages"]
        while not session.state.omissions:
            candidates = engine.bodies[-1]["messages"]
            await client.ask("Go on")
        assert render(session.state)[: len(candidates)] == candidates

    run_instantly(scene())


def test_an_eviction_that_is_computed_comes_early_and_one_that_is_not_when_it_must() -> None:
    def num_turns(*, is_computed: bool) -> int:
        engine = Engine()
        server = make_server(engine)

        async def scene() -> int:
            engine.gate = asyncio.Event()
            if is_computed:
                engine.gate.set()
            client = Client(server)
            for number in range(20):
                await client.ask("Go on", budget=BUDGET)
                if server.store.get("", "s").state.omissions:
                    return number
            raise AssertionError("nothing was evicted")

        return run_instantly(scene())

    early, due = num_turns(is_computed=True), num_turns(is_computed=False)
    assert 1 <= due - early <= 2


@pytest.mark.parametrize(
    ("num_turns", "quiet_seconds"), [(NUM_PAUSES, QUIET_SECONDS), (NUM_PAUSES + 2, GONE_SECONDS)], ids=["new", "known"]
)
def test_between_two_turns_of_others_that_leave_no_pause_nothing_is_sent(num_turns: int, quiet_seconds: float) -> None:
    """A client that came back at once the last times is waited for longer than one of which nothing is known."""
    engine = Engine()
    server = make_server(engine)

    async def scene() -> None:
        client, other = Client(server), server.store.open("", "other")
        for _ in range(8):
            await client.ask("Go on", budget=BUDGET, wait=False)
        for _ in range(num_turns):
            server.precompute.begin_turn(other)
            await asyncio.sleep(QUIET_SECONDS / 4)
            server.precompute.end_turn(other, frame_of({}), None, None)
        await asyncio.sleep(quiet_seconds - BUSY_SECONDS)
        assert engine.bodies == []
        await asyncio.sleep(4 * BUSY_SECONDS)
        assert len(engine.bodies) == 1

    run_instantly(scene())


def test_while_a_request_is_read_or_planned_nothing_is_sent() -> None:
    engine = Engine()
    server = make_server(engine)

    async def scene() -> None:
        client, other = Client(server), server.store.open("", "other")
        with server.precompute.serving(other):
            for _ in range(8):
                await client.ask("Go on", budget=BUDGET, wait=False)
            await asyncio.sleep(QUIET_SECONDS + 3 * BUSY_SECONDS)
            assert engine.bodies == [], "though the engine says that it has nothing to do"
        await asyncio.sleep(3 * BUSY_SECONDS)
        assert len(engine.bodies) == 1

    run_instantly(scene())


def test_who_reads_slowly_and_who_waits_for_that_keep_no_other_session_from_an_idle_engine() -> None:
    """A client that takes no event of a tool loop holds its session, and a second request of it waits."""
    engine = Engine()
    server = make_server(engine)

    async def ask(model: Model) -> Response | None:
        body = {"model": "m", "messages": MESSAGES, "stream": True}
        request = ChatCompletionRequest.model_validate(body)
        chat = ChatRequest(request, cast(Any, RAW), body, SessionParams("slow"), "", LoopOptions(("sculptor",), 5))
        return await answer_chat(server, chat, model)

    async def scene() -> None:
        response = await ask(Model(said("Done.")))
        assert isinstance(response, StreamingResponse)
        events = cast("AsyncGenerator[str, None]", response.body_iterator)
        first = await anext(events)
        waiting = asyncio.create_task(ask(Model(said("Done."))))
        other = server.store.open("", "other")
        made = server.precompute.prepare(other, other.state, 10, None)
        await asyncio.sleep(GONE_SECONDS + 4 * BUSY_SECONDS)
        assert made.status == "ready"
        rest = [event async for event in events]
        assert "[DONE]" in rest[-1]
        assert first not in rest[-1]
        second = await waiting
        assert isinstance(second, StreamingResponse)
        assert [event async for event in second.body_iterator]
        assert server.precompute._num_served == 0

    run_instantly(scene())


def test_of_a_clearing_that_is_far_off_its_last_results_are_not_computed() -> None:
    engine = Engine()
    server = make_server(engine)

    async def scene() -> None:
        session = server.store.open("", "s")
        messages: list[Any] = [{"role": "user", "content": "Begin"}]
        for number in range(8):
            call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": "r " * 50})
            session.state = adopt(session.state, messages).state
            meter = server.budgets.meter(session)
            trigger = meter.num_tokens + 60 * 3
            server.precompute.end_turn(session, frame_of({}), None, [ClearToolUses(trigger, keep=3)])
            await asyncio.sleep(3 * PAUSE_SECONDS)
        assert engine.num_cut
        assert engine.num_cut[-1] > 150, "the last three results"

    run_instantly(scene())


def test_nothing_is_planned_or_sent_while_the_engine_serves_others() -> None:
    engine = Engine()
    server = make_server(engine)

    async def scene() -> None:
        client = Client(server)
        engine.serves_others = True
        for _ in range(5):
            await client.ask("Go on", budget=BUDGET)
        session = server.store.get("", "s")
        made = server.precompute.prepare(session, session.state, 10, None)
        await asyncio.sleep(3 * BUSY_SECONDS)
        assert (engine.bodies, made.status) == ([], "pending")
        assert server.budgets.meter(session).turn_stats.kept is None
        engine.serves_others = False
        await asyncio.sleep(3 * BUSY_SECONDS)
        assert made.status == "ready"
        assert len(engine.bodies) >= 2
        assert server.budgets.meter(session).turn_stats.kept is not None

    run_instantly(scene())


def test_of_many_sessions_that_wait_one_asks_whether_the_engine_is_busy() -> None:
    engine = Engine()
    server = make_server(engine)

    async def scene() -> None:
        engine.serves_others = True
        opened = [server.store.open("", f"s{number}") for number in range(50)]
        made = [server.precompute.prepare(session, session.state, 10, None) for session in opened]
        await asyncio.sleep(10 * BUSY_SECONDS)
        assert engine.num_asked <= len(opened) + 12
        engine.serves_others = False
        await asyncio.sleep(3 * BUSY_SECONDS)
        assert {one.status for one in made} == {"ready"}

    run_instantly(scene())


def test_a_session_whose_own_client_may_come_keeps_no_other_from_an_idle_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine()
    server = make_server(engine)
    monkeypatch.setattr(Watch, "may_be_met", lambda self, now: self.was_served)

    async def scene() -> None:
        expected, other = server.store.open("", "expected"), server.store.open("", "other")
        server.precompute.end_turn(expected, frame_of({}), None, [ClearToolUses(100, keep=0)])
        made = server.precompute.prepare(other, other.state, 10, None)
        await asyncio.sleep(QUIET_SECONDS + PAUSE_SECONDS)
        assert made.status == "pending", "somebody else was heard a moment ago"
        await asyncio.sleep(4 * BUSY_SECONDS)
        assert made.status == "ready"
        assert len(engine.bodies) == 1, "the session whose client may come is not looked at"

    run_instantly(scene())


def test_off_sends_nothing_and_evicts_as_before() -> None:
    def omissions_after(mode: str) -> tuple[Engine, list[Any]]:
        engine, found = Engine(), []
        server = make_server(engine, mode)

        async def scene() -> None:
            client = Client(server)
            for _ in range(12):
                await client.ask("Go on", wait=False, budget=BUDGET)
                found.append(server.store.get("", "s").state.omissions)

        run_instantly(scene())
        return engine, found

    engine, off = omissions_after("off")
    assert engine.bodies == []
    assert any(off)
    assert omissions_after("heal")[1] == off
    assert omissions_after("predict")[1] == off, "without a pause nothing is planned ahead"


@pytest.mark.parametrize("mode", ["heal", "predict"])
def test_a_moved_context_is_healed_once(mode: str) -> None:
    engine = Engine()
    server = make_server(engine, mode)

    async def scene() -> None:
        client = Client(server)
        client.moves = [{"dst_start": 10, "src_start": 50, "num_tokens": 80}]
        await client.ask("lorem " * 200)
        assert [body["messages"] for body in engine.bodies] == [render(server.store.get("", "s").state)]
        served = server.served.of("", "s")
        assert served.num_stale == 0
        last = served.last
        server.precompute.end_turn(server.store.get("", "s"), frame_of({}), None, None)
        await asyncio.sleep(3 * PAUSE_SECONDS)
        assert len(engine.bodies) == 1
        assert served.last is last, "a background request is not remembered as served"

    run_instantly(scene())


def test_the_next_request_cancels_and_so_do_a_redaction_and_a_deletion() -> None:
    engine = Engine()
    server = make_server(engine, "heal")

    async def scene() -> None:
        engine.gate = asyncio.Event()
        client = Client(server)
        client.moves = [{"dst_start": 10, "src_start": 50, "num_tokens": 80}]
        await client.ask("lorem " * 200)
        assert (len(engine.bodies), engine.num_cancelled) == (1, 0)
        await client.ask("lorem " * 20)
        assert (len(engine.bodies), engine.num_cancelled) == (2, 1)
        session = server.store.get("", "s")
        batch = [made_edit("redact", 0)]
        await server.editor.edit(session, batch, None)
        server.precompute.note_edit(session)
        await asyncio.sleep(3 * PAUSE_SECONDS)
        made = await server.prepare(session, [made_edit("fold", 1)])
        await asyncio.sleep(3 * PAUSE_SECONDS)
        assert (made.status, made.reason) == ("dropped", "forgets_first")
        assert (len(engine.bodies), engine.num_cancelled) == (2, 2), "nothing before the engine has forgotten"
        await client.ask("lorem " * 20)
        assert len(engine.bodies) == 3, "it has forgotten with the turn"
        server.delete(session)
        await asyncio.sleep(0)
        assert engine.num_cancelled == 3
        assert server.precompute.num_failed == 0

    run_instantly(scene())


def made_edit(op: str, message: int) -> Any:
    return Edit(EditKind(op), None, (message, message + 1))


def test_a_failure_is_logged_once_and_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine()
    engine.failure = Unavailable("the engine is gone")
    server = make_server(engine, "heal")

    async def scene() -> None:
        client = Client(server)
        client.moves = [{"dst_start": 10, "src_start": 50, "num_tokens": 80}]
        for _ in range(3):
            await client.ask("lorem " * 100)
        session = server.store.get("", "s")
        made = await server.prepare(session, [made_edit("fold", 0)])
        await asyncio.sleep(3 * PAUSE_SECONDS)
        assert (made.status, made.reason, made.state) == ("dropped", "failed", None)

    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    run_instantly(scene())
    assert server.precompute.num_failed == 4
    # By time: where vLLM has set its logger up, a record may be captured twice.
    assert len({record.created for record in caplog.records if "precomputing failed" in record.getMessage()}) == 1


def test_no_more_is_computed_than_the_share_of_the_pool() -> None:
    engine = Engine()
    server = make_server(engine, "heal", share=0.1, pool=500)

    async def scene() -> None:
        client = Client(server)
        client.moves = [{"dst_start": 10, "src_start": 50, "num_tokens": 80}]
        await client.ask("lorem " * 200)
        assert engine.num_cut == [190 - 50]
        assert server.served.of("", "s").num_stale > 0, "a part is not all"

    run_instantly(scene())


def test_an_edit_between_turns_is_computed_at_once() -> None:
    engine = Engine()
    server = make_server(engine)

    async def scene() -> None:
        client = Client(server)
        await client.ask("lorem " * 200)
        assert engine.bodies == []
        session = server.store.get("", "s")
        await server.editor.edit(session, [made_edit("fold", 0)], None)
        server.precompute.note_edit(session)
        await asyncio.sleep(3 * PAUSE_SECONDS)
        assert [body["messages"] for body in engine.bodies] == [render(session.state)]

    run_instantly(scene())


def test_a_tool_loop_ends_with_its_tools_and_preset_in_the_frame() -> None:
    """And with the suite whose tools its folds name."""
    engine = Engine()
    turn = make_turn(suites=("sculptor-v1",), preset="unified")
    turn.server.precompute = Precomputer(
        turn.server.sessions, turn.server.budgets, engine, PrecomputeOptions("predict")
    )

    async def scene() -> None:
        cut = cut_messages(turn.session.state, 0, 1, turn.server.tokenizer).state
        turn.server.store.save(turn.session, cut)
        await run_loop(turn, Model(said("Done.")), RAW, {"model": "m", "messages": MESSAGES, "n": 1})
        await asyncio.sleep(3 * PAUSE_SECONDS)

    run_instantly(scene())
    [body] = engine.bodies
    assert "fold_fragment" in [tool["function"]["name"] for tool in body["tools"]]
    assert body["messages"][0]["role"] == "system"
    assert "expand_fragment" in body["messages"][1]["content"]
    assert "n" not in body


FOLD = {"op": "fold", "messages": {"start": 1, "end": 2}}


def until_prepared(client: TestClient, url: str) -> dict[str, Any]:
    """What became of a preparation, however long the machine takes for it."""
    for _ in range(6000):
        prepared: dict[str, Any] = client.get(url).json()
        if prepared["status"] != "pending":
            return prepared
        time.sleep(0.01)
    pytest.fail("the preparation never ends")


def test_prepare_by_http() -> None:
    engine = Engine()
    server = make_server(engine, "off")
    with TestClient(make_app(server)) as client:
        client.post(SESSIONS, json={"session_id": "s", "messages": HISTORY})
        before = server.store.get("", "s").state
        answer = client.post(f"{SESSIONS}/s/prepare", json={"edits": [FOLD]}, headers={"X-Cache-Salt": ""})
        assert answer.status_code == 202
        prepared = answer.json()
        assert (prepared["status"], prepared["ready_tokens"]) == ("pending", None)
        prepared = until_prepared(client, answer.headers["Location"])
        assert prepared == {
            "prepare_id": prepared["prepare_id"],
            "status": "ready",
            "reason": None,
            "computed_tokens": 300,
            "ready_tokens": 700,
        }
        assert server.store.get("", "s").state is before
        client.post(f"{SESSIONS}/s/edits", json={"edits": [FOLD]})
        assert engine.bodies[0]["messages"] == render(server.store.get("", "s").state)
        engine.fallback_reason = "precompute_pool_share"
        answer = client.post(f"{SESSIONS}/s/prepare", json={"edits": [FOLD | {"messages": {"start": 3, "end": 4}}]})
        prepared = until_prepared(client, answer.headers["Location"])
        assert (prepared["status"], prepared["reason"], prepared["ready_tokens"]) == (
            "dropped",
            "precompute_pool_share",
            700,
        )
        assert client.get(SESSIONS + "/s").json()["precompute"] == {
            "mode": "off",
            "max_pool_share": 0.2,
            "working": False,
        }


def test_a_prepared_summary_is_the_one_that_is_used() -> None:
    engine = Engine()
    server = make_server(engine, "off")
    summarize = {"edits": [FOLD | {"op": "summarize"}]}
    with TestClient(make_app(server)) as client:
        client.post(SESSIONS, json={"session_id": "s", "messages": HISTORY})
        client.post(f"{SESSIONS}/s/prepare", json=summarize)
        client.post(f"{SESSIONS}/s/edits", json=summarize)
    summarizer: Any = server._summarizer
    assert summarizer.num_summaries == 1


@pytest.mark.parametrize(
    ("edits", "status", "param"),
    [
        ([], 400, "edits"),
        ([{"op": "fold"}], 400, "edits[0].fragment_id"),
        ([{"op": "fold", "fragment_id": "f00000"}], 404, "edits[0].fragment_id"),
        ([FOLD, FOLD], 409, "edits[1].messages"),
        ([FOLD | {"op": "redact"}], 409, "edits[0].op"),
    ],
)
def test_bad_edits_are_refused_as_edits_are(edits: list[Any], status: int, param: str) -> None:
    engine = Engine()
    with TestClient(make_app(make_server(engine))) as client:
        client.post(SESSIONS, json={"session_id": "s", "messages": HISTORY})
        answer = client.post(f"{SESSIONS}/s/prepare", json={"edits": edits})
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
        assert answer.json()["error"]["remedy"] or answer.json()["error"]["message"]
        unknown = client.get(f"{SESSIONS}/s/prepare/p00009")
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "prepare_id")
    assert engine.bodies == []


@pytest.mark.parametrize(
    ("flag", "share"), [("predict", 0.2), ('{"mode": "heal", "max_pool_share": 0.1}', 0.1)], ids=["mode", "object"]
)
def test_the_flag_is_for_the_server_and_its_share_for_the_engine(flag: str, share: float) -> None:
    ours, _ = build_parser().parse_known_args(["smollm2", "--precompute", flag])
    extra = merge_kv_transfer_config(None, ours).kv_connector_extra_config
    assert EngineConfig.parse(extra).precompute_max_pool_share == share
    options = ContextConfig.parse(extra).precompute_options
    assert options is not None
    assert options.max_pool_share == share
    assert ContextConfig().precompute_options is None


@pytest.mark.parametrize("flag", ["often", '{"mode": "heal", "max_pool_share": 2}', '{"mode"'])
def test_a_bad_flag_stops_the_server(flag: str) -> None:
    ours, _ = build_parser().parse_known_args(["smollm2", "--precompute", flag])
    with pytest.raises(InvalidRequest, match="--precompute"):
        merge_kv_transfer_config(None, ours)


def test_ahead_counts_in_chats_and_the_engines_own_word_elsewhere() -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_no_loop({"acm": {"precompute": "predict"}}, "/v1/completions keeps none", "Send a chat")
    assert str(refused.value) == (
        "acm.precompute: is 'predict', which needs a transcript, but /v1/completions keeps none. "
        "Send a chat, or leave acm.precompute out."
    )
    direct = {"kv_transfer_params": {"acm": {"session_id": "s", "precompute": True}}}
    assert params_of(direct, {}) == SessionParams("s", precompute=True)
