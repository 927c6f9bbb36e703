"""What a turn leaves behind when something else happened to its session while the model answered."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.responses import JSONResponse
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from acmserve.context.edits.cut import cut_messages
from acmserve.context.eviction.clear_tool_uses import ClearToolUses
from acmserve.context.eviction.compact import Summary
from acmserve.context.session.budget import Budget
from acmserve.context.session.carrying.meanwhile import OUTDATED
from acmserve.context.session.fragment import Visibility
from acmserve.context.session.history import adopt
from acmserve.context.session.precompute_options import PrecomputeOptions
from acmserve.context.session.render import render
from acmserve.context.session.rollout.record import Initiator, RolloutOperation
from acmserve.context.session.state import SessionState
from acmserve.context.storage.session import Session
from acmserve.context.tools.batch import Edit, EditKind, run_batch
from acmserve.context.tools.run import ToolCall
from acmserve.context.tools.tool import SummaryWanted, ToolContext, ToolOutcome
from acmserve.context.transcript.observations import ObservationRule
from acmserve.context.transcript.omissions import PLACEHOLDER, MessageOmissions, Omissions
from acmserve.errors import Conflict
from acmserve.plan.request import SessionParams
from acmserve.server.chat.options import ChatRequest, fitting_record
from acmserve.server.chat.recording import TurnRecording, taken_in
from acmserve.server.chat.turn import answer_chat
from acmserve.server.context.branches import give_back, make_branch
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.exchange import CURRENT
from acmserve.server.exchange.sampled import SampledAnswer, SampledAnswers
from acmserve.server.options.loop_options import LoopOptions
from acmserve.server.sessions.rollout import begin_rollout, operate_rollout
from acmserve.server.vllm.handlers import ChatCompletionRequest
from tests.support.routes.stand_in_model import RAW, Model, call, said
from tests.support.server.acm_app import HISTORY, lines, make_server

ANSWER = {"role": "assistant", "content": "Noted."}
LONG = [*HISTORY, {"role": "user", "content": lines(12, "secret")}]
NEXT = [*LONG, ANSWER, {"role": "user", "content": "And now?"}]
REFUSED = JSONResponse({"error": {"message": "The prompt is too long."}}, status_code=400)
LOOP = LoopOptions(("sculptor",), 5)
HEAL, OFF = PrecomputeOptions("heal"), PrecomputeOptions("off")
BY_USER = ObservationRule("user")
CUT = call("fragment_context", start_marker="secret 1", end_marker="secret 9", num_fragments=2)


@pytest.fixture
def server() -> ContextServer:
    return make_server()


def asked(server: ContextServer, messages: list[dict[str, Any]], token: int) -> TurnRecording:
    """A turn that was sent to the engine. Its prompt is this token, and so is its answer."""
    session = server.store.open("", "s")
    body = {"model": "m", "messages": messages}
    params = SessionParams("s")
    chat = ChatRequest(ChatCompletionRequest(**body), cast(Any, None), body, params, "", rollout=True)
    state = begin_rollout(taken_in(server, session.state, chat).state, "m")
    exchange = server.sessions.exchange(session, params, messages)
    exchange.sampled = SampledAnswers([token], {0: SampledAnswer([token], "Noted.", None, "stop")})
    return TurnRecording(server, session, session.state, state, chat, exchange, server.store.use(session))


def finished(text: str) -> SimpleNamespace:
    """The last output of an engine that computed all of the prompt."""
    counts = {"prompt_tokens": 3, "kept_tokens": 0, "moved_tokens": 0, "computed_tokens": 3, "precomputed_tokens": 0}
    receipt = counts | {"fidelity": "exact", "moves": [], "fallback_reason": None}
    return SimpleNamespace(
        outputs=[SimpleNamespace(index=0, text=text, token_ids=[], logprobs=None, finish_reason="stop")],
        prompt_token_ids=[1, 2, 3],
        num_cached_tokens=0,
        num_cache_creation_tokens=3,
        metrics=None,
        finished=True,
        kv_transfer_params={"acm": {"receipt": receipt}},
    )


def edit(server: ContextServer, session: Session, kind: EditKind, at: int) -> None:
    context = ToolContext(server.tokenizer, "sculptor", "exact")
    server.store.save(session, run_batch(session.state, [Edit(kind, messages=(at, at + 1))], context, {}).state)


def prompts(state: SessionState) -> list[list[int]]:
    return [state.rollout.prompt(number) for number in range(len(state.rollout.completions))]


def test_a_prompt_with_a_text_that_was_redacted_stays_out_also_where_its_message_is_gone(server: ContextServer) -> None:
    asked(server, LONG, 1).record(ANSWER)
    under_way = asked(server, LONG, 2)
    session = under_way.session
    assert prompts(session.state) == [[1]], "the control: nothing was redacted"
    edit(server, session, EditKind.REDACT, len(HISTORY))
    asked(server, HISTORY, 3).record(ANSWER)
    assert not any(fragment.hidden for fragment in session.state.fragments), "the redaction went with its message"
    under_way.record(ANSWER)
    assert prompts(session.state) == [[3]]


def test_an_answer_that_quotes_what_was_redacted_meanwhile_is_cut(server: ContextServer) -> None:
    quote = {"role": "assistant", "content": f"It says: {LONG[-1]['content']}"}
    under_way = asked(server, LONG, 1)
    session = under_way.session
    server.store.save(session, under_way.after)
    edit(server, session, EditKind.REDACT, len(HISTORY))
    under_way.record(quote)
    session.state.check_integrity()
    assert str(session.state.entries[-1].message["content"]).startswith("It says: ")
    assert "secret 1 says" not in str(session.state.entries)


@pytest.mark.parametrize("redacted", [True, False], ids=["redacted", "control"])
def test_the_arguments_of_a_call_have_no_redacted_text_in_the_record(server: ContextServer, redacted: bool) -> None:
    """A caller that asks whether the text is gone would put it back."""
    asked(server, LONG, 1).record(ANSWER)
    session = server.store.open("", "s")
    if redacted:
        edit(server, session, EditKind.REDACT, len(HISTORY))
    query = f"Is this left?\n{lines(12, 'secret')}"
    call = ToolCall("search_context", {"query": query, "max_results": 2})
    outcome = asyncio.run(server.editor.call_tool(session, call, "sculptor", "exact"))
    assert outcome.error is None
    operation = session.state.rollout.events[-1]
    assert isinstance(operation, RolloutOperation)
    assert operation.arguments["max_results"] == 2
    said = operation.arguments["query"]
    assert said == ("Is this left?\n[redacted]\n" if redacted else query)
    cut_between = {"query": {"x" * 8: [lines(12, "secret")]}, lines(12, "secret"): 1}
    state = operate_rollout(session.state, Initiator.CALLER, "search_context", cut_between)
    assert ("secret 1 says" in str(state.rollout)) is not redacted


@pytest.mark.parametrize("redacted", [True, False], ids=["redacted", "control"])
def test_a_prompt_with_a_text_that_was_redacted_meanwhile_is_not_remembered(
    server: ContextServer, redacted: bool
) -> None:
    """The end of an answer brought the prompt back, and the answer's own tokens, which a hand-over gives away."""
    exchange = asked(server, LONG, 1).exchange
    session = server.store.open("", "s")
    exchange.send(SamplingParams(output_kind=RequestOutputKind.DELTA))
    exchange.prepare({"type": "token", "prompt_token_ids": [1, 2, 3]}, 100)
    if redacted:
        server.sessions.forget(session)
    exchange.receive(cast(Any, finished("secret")))
    known = server.served.known(*session.key)
    assert (known is None or (known.last is None and known.scored is None)) is redacted


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "control"])
def test_an_answer_stays_that_is_recorded_while_a_tool_waits_for_its_summary(
    server: ContextServer, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """The tool saved from the state that it had in front of the summary: entries, and a turn, were gone."""
    asked(server, LONG, 1).record(ANSWER)
    under_way = asked(server, NEXT, 2)
    session = under_way.session
    cut = cut_messages(session.state, len(HISTORY), len(LONG), server.tokenizer)
    server.store.save(session, cut.state)
    num_entries, num_turns = len(session.state.entries), session.state.num_turns
    asked_for = []

    # What the model writes takes a while, and here an answer of the session is through in it.
    async def summarize(wanted: SummaryWanted) -> str:
        asked_for.append(wanted)
        if answered:
            under_way.record({"role": "assistant", "content": "The second answer."})
        return "Short."

    monkeypatch.setattr(server.editor._summarizer, "summarize", summarize)
    call = ToolCall("summarize_fragment", {"fragment_id": cut.fragments[0].fragment_id, "focus": "all"})

    async def summarized() -> ToolOutcome:
        async with server.sessions.locked(session):
            return await server.editor.call_tool(session, call, "sculptor", "exact")

    outcome = asyncio.run(summarized())
    state = session.state
    assert (outcome.error, outcome.changed, len(asked_for)) == (None, True, 1)
    assert ("The second answer." in str(state.entries)) is answered
    assert (len(state.entries), state.num_turns) == (num_entries + 2 * answered, num_turns + answered)
    assert [fragment.visibility for fragment in state.fragments] == [Visibility.SUMMARIZED]
    state.check_integrity()


class ModelInFrontOf(Model):
    """Another answer of the session is through behind the first step."""

    def __init__(self, *lines: Any, under_way: TurnRecording | None) -> None:
        super().__init__(*lines)
        self.under_way = under_way

    async def __call__(self, request: Any, raw_request: Any) -> Any:
        if len(self.requests) == 1 and self.under_way is not None:
            self.under_way.record({"role": "assistant", "content": "The second answer."})
        return await super().__call__(request, raw_request)


def in_loop(
    server: ContextServer, model: Model, history: list[dict[str, Any]] = LONG, **options: Any
) -> JSONResponse | None:
    """Another request of the session, with a tool loop and another question."""
    body = {"model": "m", "messages": [*history, ANSWER, {"role": "user", "content": "Or else?"}]}
    request = ChatCompletionRequest(**cast(Any, body))
    chat = ChatRequest(request, cast(Any, RAW), body, SessionParams("s"), "", LOOP, rollout=True, **options)
    return cast("JSONResponse | None", asyncio.run(answer_chat(server, chat, model)))


def left(state: SessionState) -> tuple[Any, ...]:
    """What a session holds, but for what differs from one session to the next."""
    messages = [(entry.message, entry.origin, entry.turn) for entry in state.entries]
    return messages, state.num_turns, state.fragments, state.omissions, state.rollout


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "control"])
@pytest.mark.parametrize("failure", [REFUSED, None], ids=["refused", "gone"])
def test_an_answer_stays_that_is_recorded_while_a_tool_loop_fails(
    server: ContextServer, answered: bool, failure: JSONResponse | None
) -> None:
    """The loop put back the state that it had begun with: the answer was gone, and nobody was told."""
    asked(server, LONG, 1).record(ANSWER)
    under_way = asked(server, NEXT, 2)
    session = under_way.session
    alone = make_server()
    asked(alone, LONG, 1).record(ANSWER)
    if answered:
        asked(alone, NEXT, 2).record({"role": "assistant", "content": "The second answer."})
    model = ModelInFrontOf(said(None, CUT), failure, under_way=under_way if answered else None)
    response = in_loop(server, model)
    assert (response is None) is (failure is None)
    assert len(model.requests) == 2
    assert left(session.state) == left(alone.store.get("", "s").state), "as if there had been no loop"
    assert ("The second answer." in str(session.state.entries)) is answered
    assert server.sessions.undoable == {}
    session.state.check_integrity()


def test_an_answer_stays_that_is_recorded_while_a_tool_loop_fails_at_once(server: ContextServer) -> None:
    """An exception of its first step undoes it, too."""
    asked(server, LONG, 1).record(ANSWER)
    under_way = asked(server, NEXT, 2)

    class Broken(Model):
        async def __call__(self, request: Any, raw_request: Any) -> Any:
            under_way.record({"role": "assistant", "content": "The second answer."})
            raise RuntimeError("engine gone")

    with pytest.raises(RuntimeError, match="engine gone"):
        in_loop(server, Broken())
    state = under_way.session.state
    assert [entry.message["content"] for entry in state.entries[-2:]] == ["And now?", "The second answer."]
    assert prompts(state) == [[1], [2]]
    assert server.sessions.undoable == {}


@pytest.mark.parametrize("fails", [True, False], ids=["refused", "gone"])
@pytest.mark.parametrize(
    ("meanwhile", "loop"),
    [("nothing", None), ("budget", None), ("request", None), ("nothing", LOOP), ("request", LOOP)],
    ids=["nothing", "budget", "request", "nothing-loop", "request-loop"],
)
def test_a_first_request_that_fails_takes_no_session_from_others(
    server: ContextServer, meanwhile: str, loop: LoopOptions | None, fails: bool
) -> None:
    """A request that came meanwhile was answered, and nowhere recorded. A budget that was confirmed was gone."""

    def ask(core: Any, loop: LoopOptions | None = None) -> Any:
        body: dict[str, Any] = {"model": "m", "messages": list(LONG)}
        request = ChatCompletionRequest(**cast(Any, body))
        return answer_chat(server, ChatRequest(request, cast(Any, RAW), body, SessionParams("s"), "", loop), core)

    async def main() -> None:
        failed, waiting = asyncio.Event(), list[asyncio.Task[Any]]()

        async def second(request: Any, raw_request: Any) -> Any:
            await failed.wait()
            return JSONResponse(said("Noted."))

        async def first(request: Any, raw_request: Any) -> Any:
            session = server.store.get("", "s")
            if meanwhile == "budget":
                server.store.save(session, replace(session.state, budget=Budget(900)))
            elif meanwhile == "request":
                waiting.append(asyncio.create_task(ask(second)))
                await asyncio.sleep(0)
            if not fails:
                raise RuntimeError("engine gone")
            return REFUSED

        with nullcontext() if fails else pytest.raises(RuntimeError):
            assert (await ask(first, loop)).status_code == 400
        failed.set()
        for task in waiting:
            assert (await task).status_code == 200

    asyncio.run(main())
    assert not server.sessions.unshared
    if meanwhile == "nothing":
        assert not server.store.has("", "s"), "the control"
        return
    state = server.store.get("", "s").state
    assert len(state.entries) == (len(LONG) + 1 if meanwhile == "request" else 0)
    assert state.budget == (Budget(900) if meanwhile == "budget" else None)


@pytest.mark.parametrize("outcomes", ["--", "-+", "+-"], ids=["both fail", "second answered", "first answered"])
@pytest.mark.parametrize("is_set", [False, True], ids=["", "budget"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["in order", "overtaken"])
def test_of_overlapping_first_requests_the_last_that_fails_leaves_no_session(
    server: ContextServer, outcomes: str, is_set: bool, order: tuple[int, int]
) -> None:
    """The first one left the session to the second, which had not made it. So an empty one was listed for good."""
    body: dict[str, Any] = {"model": "m", "messages": list(LONG)}
    request = ChatCompletionRequest(**cast(Any, body))

    async def main() -> None:
        ends, tasks = [asyncio.Event(), asyncio.Event()], []
        for number in range(2):

            async def core(request: Any, raw_request: Any, number: int = number) -> Any:
                await ends[number].wait()
                return REFUSED if outcomes[number] == "-" else JSONResponse(said("Noted."))

            chat = ChatRequest(request, cast(Any, RAW), body, SessionParams("s"), "")
            tasks.append(asyncio.create_task(answer_chat(server, chat, core)))
            await asyncio.sleep(0.01)
            session = server.store.get("", "s")
            if is_set and not number:
                server.store.save(session, replace(session.state, budget=Budget(900)))
        for number in order:
            ends[number].set()
            await tasks[number]

    asyncio.run(main())
    assert not server.sessions.unshared
    assert server.store.has("", "s") is ("+" in outcomes or is_set)
    if server.store.has("", "s"):
        assert bool(server.store.get("", "s").state.entries) is ("+" in outcomes)


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "control"])
def test_an_answer_stays_that_is_recorded_while_a_step_waits_for_its_summary(
    server: ContextServer, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """The step of a tool loop saved what it had summarized, without the answer."""
    history = [*HISTORY[:2], {"role": "assistant", "content": lines(40, "gamma")}, HISTORY[3]]
    asked(server, history, 1).record(ANSWER)
    under_way = asked(server, [*history, *NEXT[-2:]], 2)
    summarized = []

    async def summarize(text: str, num_tokens: int, instructions: str = "") -> Summary:
        summarized.append(text)
        if answered and len(summarized) == 1:
            under_way.record({"role": "assistant", "content": "The second answer."})
        return Summary("Short.", num_tokens, 2)

    monkeypatch.setattr(server._summarizer, "summarize_conversation", summarize)
    in_loop(server, Model(said("Done.")), history, budget=Budget(60, 40, "compact"))
    state = under_way.session.state
    assert len(summarized) == 1 + answered
    assert ("The second answer." in str(state.entries)) is answered
    assert "Short." in str(state.omissions)
    state.check_integrity()


@pytest.mark.parametrize("meanwhile", [False, True])
def test_an_eviction_is_recorded_although_the_session_was_edited_meanwhile(
    server: ContextServer, meanwhile: bool
) -> None:
    asked(server, LONG, 1).record(ANSWER)
    turn = asked(server, [*LONG, ANSWER, {"role": "user", "content": "And?"}], 2)
    evicted = replace(turn.after, omissions=Omissions(entries={len(LONG): MessageOmissions(text=True)}))
    turn = replace(turn, after=operate_rollout(evicted, Initiator.POLICY, "recency", {"max_tokens": 9}, 2))
    if meanwhile:
        edit(server, turn.session, EditKind.FOLD, len(HISTORY))
    turn.record(ANSWER)
    kinds = [(type(event).__name__, event.number) for event in turn.session.state.rollout.events]
    assert kinds == [("RolloutCompletion", 0), ("RolloutOperation", 0), ("RolloutCompletion", 1)]
    turn.session.state.check_integrity()


def test_a_note_that_quotes_what_was_redacted_meanwhile_is_cut(server: ContextServer) -> None:
    asked(server, LONG, 1).record(ANSWER)
    turn = asked(server, [*LONG, ANSWER, {"role": "user", "content": "And?"}], 2)
    note = f"[explored find: {LONG[-1]['content'].strip()}]"
    noted = Omissions(entries={len(LONG): MessageOmissions(text=True, notes=(note,))})
    turn = replace(turn, after=replace(turn.after, omissions=noted))
    edit(server, turn.session, EditKind.REDACT, len(HISTORY))
    turn.record(ANSWER)
    assert turn.session.state.omissions.entries[len(LONG)].notes == ("[explored find: [redacted]]",)


@pytest.mark.parametrize("acm", [{}, {"rollout": True}])
def test_who_did_not_ask_for_a_record_is_not_refused_for_it(server: ContextServer, acm: dict[str, Any]) -> None:
    """Under the server's `--rollout` a client that changes its model would get no answer any more."""
    turn = asked(server, LONG, 1)
    turn.record(ANSWER)
    chat = replace(turn.chat, body=turn.chat.body | {"acm": acm})
    assert fitting_record(chat, turn.session.state) is chat, "the control: the same model"
    other = ChatCompletionRequest(model="n", messages=cast(Any, LONG))
    changed = replace(chat, request=other)
    if acm:
        with pytest.raises(Conflict, match=r"send acm\.rollout: false"):
            fitting_record(changed, turn.session.state)
    else:
        assert not fitting_record(changed, turn.session.state).rollout


@pytest.mark.parametrize("changed", [True, False], ids=["changed", "control"])
@pytest.mark.parametrize(
    ("options", "settings", "by_others"),
    [
        ({"budget": Budget(900)}, {"budget": Budget(900)}, {"budget": Budget(700)}),
        ({"budget": Budget(900)}, {"budget": Budget(900)}, {"budget": None}),
        ({"precompute": HEAL}, {"precompute": HEAL}, {"precompute": OFF}),
        ({"observations": BY_USER}, {"observation_rule": BY_USER}, {"observation_rule": ObservationRule("off")}),
    ],
    ids=["budget", "no budget", "precompute", "observations"],
)
def test_a_setting_that_was_changed_while_the_model_answered_stays(
    server: ContextServer, options: dict[str, Any], settings: dict[str, Any], by_others: dict[str, Any], changed: bool
) -> None:
    """A budget was confirmed, and the end of the answer put that of its request in its place."""
    session = server.store.open("", "s")
    server.store.save(session, replace(session.state, budget=Budget(800)))

    async def core(request: Any, raw_request: Any) -> Any:
        edited = replace(session.state, **by_others) if changed else replace(session.state, num_ids=9)
        server.store.save(session, edited)
        return JSONResponse(said("Noted."))

    body: dict[str, Any] = {"model": "m", "messages": list(LONG)}
    request = ChatCompletionRequest(**cast(Any, body))
    chat = replace(ChatRequest(request, cast(Any, RAW), body, SessionParams("s"), ""), **options)
    assert asyncio.run(answer_chat(server, chat, core)) is not None
    assert len(session.state.entries) == len(LONG) + 1, "the answer is recorded"
    expected = by_others if changed else settings
    assert {name: getattr(session.state, name) for name in expected} == expected


def step(number: int) -> list[dict[str, Any]]:
    """A call of the client's own tool, and its result."""
    made = call("read", f"t{number}", page=number)
    return [
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": f"t{number}", "content": f"Page {number} is long."},
    ]


async def told(server: ContextServer, chat: ChatRequest, core: Any) -> Any:
    """What the answer to a chat says in `acm`."""
    assert await answer_chat(server, chat, core) is not None
    exchange = CURRENT.get()
    assert exchange is not None
    return exchange.fields


STEPS = [message for number in range(4) for message in step(number)]
CLEARING = (ClearToolUses(None, 1, 1),)


@pytest.mark.parametrize("num_new", [1, 4], ids=["three steps before", "all steps new"])
@pytest.mark.parametrize("returns", [True, False], ids=["returns", "control"])
def test_what_a_request_cleared_stays_where_it_was_although_a_branch_returns_meanwhile(
    server: ContextServer, returns: bool, num_new: int
) -> None:
    """The message of the branch came in front of the new ones. By their numbers, it was cleared itself."""
    history = [{"role": "system", "content": "Read all pages."}, {"role": "user", "content": "Go on."}]
    parent = server.store.create("", "s")
    server.store.save(parent, adopt(SessionState(), [*history, *STEPS[: -2 * num_new]]).state)
    branch = make_branch(server, parent, "look", "Look around.")

    async def core(request: Any, raw_request: Any) -> Any:
        if returns:
            give_back(server, branch, parent, "The branch found it.")
        return JSONResponse(said("Read."))

    body: dict[str, Any] = {"model": "m", "messages": [*history, *STEPS]}
    request = ChatCompletionRequest(**cast(Any, body))
    chat = ChatRequest(request, cast(Any, RAW), body, SessionParams("s"), "", edits=CLEARING, rollout=True)
    assert asyncio.run(answer_chat(server, chat, core)) is not None
    parent.state.check_integrity()
    results = {entry["tool_call_id"]: entry["content"] for entry in render(parent.state) if entry["role"] == "tool"}
    expected = {f"t{number}": PLACEHOLDER if number < 3 else f"Page {number} is long." for number in range(4)}
    assert results == expected | ({branch.session_id: "The branch found it."} if returns else {})
    assert [made.name for made in parent.state.rollout.events if isinstance(made, RolloutOperation)] == [
        "context_management"
    ]


@pytest.mark.parametrize(
    ("meanwhile", "num_shown"),
    [
        (None, 0),
        (Omissions(entries={2: MessageOmissions(inputs=frozenset([0]))}), 3),
        (Omissions(entries={2: MessageOmissions(cleared=frozenset([0]))}), 2),
        (Omissions(entries={number: MessageOmissions(cleared=frozenset([0])) for number in (2, 4, 6)}), 0),
        (Omissions(((2, 4),)), 2),
    ],
    ids=["control", "other", "one of them", "the same", "more"],
)
def test_what_a_request_cleared_is_told_where_an_edit_meanwhile_outdates_it(
    server: ContextServer, meanwhile: Omissions | None, num_shown: int
) -> None:
    """The answer said that it was cleared, the next prompt had it again, and nobody was told."""
    history = [{"role": "system", "content": "Read all pages."}, {"role": "user", "content": "Go on."}, *STEPS]
    session = server.store.create("", "s")
    server.store.save(session, adopt(SessionState(), history).state)

    async def core(request: Any, raw_request: Any) -> Any:
        assert str(request.messages).count(PLACEHOLDER) == 3
        if meanwhile is not None:
            server.store.save(session, replace(session.state, omissions=meanwhile))
        return JSONResponse(said("Read."))

    body: dict[str, Any] = {"model": "m", "messages": history}
    request = ChatCompletionRequest(**cast(Any, body))
    chat = ChatRequest(request, cast(Any, RAW), body, SessionParams("s"), "", edits=CLEARING)
    fields = asyncio.run(told(server, chat, core))
    count = "1 message is" if num_shown == 1 else f"{num_shown} messages are"
    record = {"kind": "omission", "id": "", "reason": f"{count} shown again: {OUTDATED}"}
    assert fields == ({"dropped": [record]} if num_shown else {})
    assert str(render(session.state)).count(PLACEHOLDER) + (meanwhile == Omissions(((2, 4),))) == 3 - num_shown
    session.state.check_integrity()
