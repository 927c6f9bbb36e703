"""What a turn leaves behind when something else happened to its session while the model answered."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from acmserve.context.edits.cut import cut_messages
from acmserve.context.session.fragment import Visibility
from acmserve.context.session.rollout.record import Initiator, RolloutOperation
from acmserve.context.session.state import SessionState
from acmserve.context.storage.session import Session
from acmserve.context.tools.batch import Edit, EditKind, run_batch
from acmserve.context.tools.run import ToolCall
from acmserve.context.tools.tool import SummaryWanted, ToolContext, ToolOutcome
from acmserve.context.transcript.omissions import MessageOmissions, Omissions
from acmserve.errors import Conflict
from acmserve.plan.request import SessionParams
from acmserve.server.chat.options import ChatRequest, fitting_record
from acmserve.server.chat.recording import TurnRecording, taken_in
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.sampled import SampledAnswer, SampledAnswers
from acmserve.server.sessions.rollout import begin_rollout, operate_rollout
from acmserve.server.vllm.handlers import ChatCompletionRequest
from tests.support.server.acm_app import HISTORY, lines, make_server

ANSWER = {"role": "assistant", "content": "Noted."}
LONG = [*HISTORY, {"role": "user", "content": lines(12, "secret")}]


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
    under_way = asked(server, [*LONG, ANSWER, {"role": "user", "content": "And now?"}], 2)
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
