"""The steps of one answer with context tools: those of the model, what was carried out, what was recorded.

    ask --> (model) --> carry_out: calls one by one, then the step is recorded --> ask_again --> ...

A step is recorded as a whole, after its calls. What the client does not see (calls of context tools, their results)
stays in the session as internal entries in front of the answer. `context.session.history.adopt` keeps them when the
client sends its history again. A client that leaves in the middle leaves whole steps, which its next request drops. A
branch of the model opens and closes between two steps (`branches.py`).

It does not know how an answer is written, streamed or whole (`loop.py`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from acmserve.context.session.branches.branch_tool import RETURN
from acmserve.context.session.history import append_answer, append_internal, end_turn
from acmserve.context.session.render import render
from acmserve.context.session.turns.turn import TurnOrigin
from acmserve.errors import InvalidRequest
from acmserve.server.budget.commits import LoopCommits
from acmserve.server.budget.enforcement import Enforced
from acmserve.server.chat.branches import DEFAULT_SHARE, LoopBranches, fail_open, open_call
from acmserve.server.chat.calls import (
    Call,
    ContextTools,
    Operation,
    call_name,
    find_format_error,
    split_calls,
    text_held_back,
)
from acmserve.server.chat.live_prompt import live_prompt
from acmserve.server.chat.model_step import Spoken, Step, StepTokens, refused_answer
from acmserve.server.chat.options import Turn
from acmserve.server.chat.recording import end_loop, keep, keep_completion
from acmserve.server.chat.request import LoopRequest
from acmserve.server.exchange.exchange import CURRENT, Exchange
from acmserve.server.exchange.sampled import SampledAnswers
from acmserve.server.http.errors import problem_response
from acmserve.server.http.unsaved import storage_fields
from acmserve.server.maps.turn import beside_of, placed, placing
from acmserve.server.options.context_management import FIELD
from acmserve.server.options.preset import with_preset
from acmserve.server.precompute.background_request import frame_of
from acmserve.server.sessions.rollout import enforce_rollout
from acmserve.server.vllm.handlers import ChatCompletionRequest, VLLMClientError

logger = logging.getLogger(f"vllm.{__name__}")

MAX_REASON_CHARS = 300
Endpoint = Callable[..., Awaitable[Response | None]]


@dataclass(slots=True)
class ToolLoop:
    """`stopped_by` is None while the answer goes on. `late_texts` are those that may be sent only when a step is over.

    `core(request, raw_request)` is vLLM's route function.
    """

    turn: Turn
    core: Endpoint
    raw_request: Request
    request: LoopRequest
    spoken: Spoken = field(default_factory=Spoken)
    tokens: StepTokens = field(default_factory=StepTokens)
    format_errors: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    stopped_by: str | None = None
    num_calls: int = 0
    num_completion_tokens: int = 0
    client_calls: list[Call] = field(default_factory=list)
    late_texts: dict[str, str] = field(default_factory=dict)
    refused: dict[str, Any] = field(default_factory=dict)
    branches: LoopBranches = field(init=False)
    commits: LoopCommits = field(init=False)
    _exchange: Exchange | None = None
    _enforced: Enforced | None = None

    def __post_init__(self) -> None:
        server, session, options = self.turn.server, self.turn.session, self.turn.options
        most = options.branch_tokens or max(1, server.budgets.window // DEFAULT_SHARE)
        self.branches = LoopBranches(server.tokenizer, most, options.max_branches, session.state.parent is not None)
        self.commits = LoopCommits(server.budgets, self.turn.params.fidelity or server.default_fidelity)

    @property
    def marks(self) -> Sequence[str]:
        """How tool calls begin in the text of the model, where the running step may call any."""
        return () if self.request.is_last(self.num_calls) else self.turn.server.call_marks

    @property
    def acm(self) -> dict[str, Any]:
        """What the answer carries, as far as it has come."""
        return (
            {
                "session_id": self.turn.session.session_id,
                "receipt": self.steps[-1]["receipt"] if self.steps else None,
                "steps": self.steps,
                "stopped_by": self.stopped_by,
            }
            | ({"format_errors": self.format_errors} if self.format_errors else {})
            | self._budget_json
            | self._branches_json
            | ({} if self.turn.turn_map is None else dict(self.turn.turn_map.fields))
            | ({} if self.turn.found is None else self.turn.found.fields)
            | storage_fields(self.turn.session)
            | dict(self.turn.dropped)
            | self.refused
        )

    @property
    def _branches_json(self) -> dict[str, Any]:
        """The branches that this answer had to do with. Nothing where there are none."""
        fields = self.branches.as_json(self.turn.session.state)
        return {"branches": fields} if fields else {}

    @property
    def edited(self) -> dict[str, Any]:
        """What the answer carries beside `acm`: the edits in force in the last step. Nothing where none were asked."""
        edited = None if self._enforced is None else self._enforced.edited
        return {} if edited is None else {FIELD: edited}

    @property
    def _budget_json(self) -> dict[str, Any]:
        """What the last step's budget demanded, and which edits wait. Nothing where there is none."""
        report = None if self._enforced is None else self._enforced.report
        return ({} if report is None else {"budget": report}) | self.commits.as_json

    @property
    def receipt(self) -> dict[str, Any] | None:
        """The receipt of the step that was answered last."""
        return None if self._exchange is None else self._exchange.receipt

    @property
    def _said(self) -> str:
        return "" if self._exchange is None else self._exchange.said

    async def ask(self) -> Response | None:
        """Let the model go one step on. A branch in which it cannot has failed. It goes on in the main conversation."""
        try:
            response = await self._ask()
        except (InvalidRequest, VLLMClientError) as error:
            if not self._fail_branch(str(error)):
                raise
            return await self._ask()
        if isinstance(response, JSONResponse) and 400 <= response.status_code < 500:
            fields = json.loads(bytes(response.body)).get("error") or {}
            if self._fail_branch(str(fields.get("message", response.status_code))):
                return await self._ask()
        return response

    def _fail_branch(self, reason: str) -> bool:
        """Close the branch that is open. False where none is."""
        turn, state = self.turn, self.turn.session.state
        if state.branch is not None:
            said = f"the model could not be asked: {reason[:MAX_REASON_CHARS]}"
            keep(turn.server, turn.session, fail_open(state, said, turn.server.tokenizer), must=True)
        return state.branch is not None

    async def _ask(self) -> Response | None:
        must_return = self.branches.begin_step(self.turn.session.state, is_last=self.request.is_last(self.num_calls))
        self.spoken.is_silent = must_return
        state, rules = (await self._enforce()).state, self.turn.server.rules
        messages, wanted = render(state, rules), RETURN if must_return else None
        shown = placed(self.turn.turn_map, messages, state, rules)
        body = self.request.step(shown, len(self.steps), self.num_calls, wanted)
        try:
            request = ChatCompletionRequest.model_validate(body)
        except ValidationError as error:
            raise RequestValidationError(error.errors(include_url=False)) from error
        turn = self.turn
        self._exchange = turn.server.sessions.exchange(
            turn.session, turn.params, messages, self._enforced, turn.turn_map, self._origin
        )
        self._exchange.sampled = SampledAnswers() if turn.rollout or self.request.wants_tokens else None
        CURRENT.set(self._exchange)
        return await self.core(request=request, raw_request=self.raw_request)

    @property
    def _origin(self) -> TurnOrigin:
        """What the running step's request to the engine is."""
        return TurnOrigin(self.raw_request.url.path, len(self.steps), branch=open_call(self.turn.session.state))

    async def _enforce(self) -> Enforced:
        """The session's state, what its edits and its budget demand taken out and stored."""
        turn, session = self.turn, self.turn.session
        place, preset = placing(turn.turn_map), self.request.preset_name
        renderer = turn.server.renderer(self.request.frame(), lambda shown: with_preset(place(shown), preset))
        beside = beside_of(turn.turn_map, self.request.tools, renderer, self.request.preset)
        max_tokens, is_last = self.request.max_tokens, self.request.is_last(self.num_calls)
        state = self.commits.begin_step(session.state, self.steps, beside, max_tokens, is_last=is_last)
        if state is not session.state:
            turn.server.sessions.save(session, state)
        frame = frame_of(self.request.frame(), preset)
        while True:
            state = session.state
            live = live_prompt(turn.server.sessions, session, turn.params, frame, turn.turn_map, self._origin)
            self._enforced = await turn.server.enforce(session, state, beside, turn.params.fidelity, turn.edits, live)
            # An answer may have been recorded while a summary was written: it stays, and all is looked at anew.
            if session.state is state:
                break
        if self._enforced.state is not session.state:
            turn.server.sessions.save(session, enforce_rollout(session.state, self._enforced))
        return self._enforced

    async def ask_again(self) -> Response | None:
        """A later step: an error carries what was done so far."""
        try:
            response = await self.ask()
        except InvalidRequest as error:
            response = problem_response(error)
        except VLLMClientError as error:
            response = refused_answer(error)
        except Exception as error:
            logger.exception("acmserve: step %d of a tool loop failed", len(self.steps))
            response = refused_answer(error)
        if isinstance(response, JSONResponse) and response.status_code != 200:
            fields = json.loads(bytes(response.body)) | {"acm": self.acm}
            return JSONResponse(fields, response.status_code, background=response.background)
        return response

    async def carry_out(self, step: Step) -> AsyncIterator[Operation]:
        """Carry out the context calls of a step, yielding each. Then record it. With `stopped_by` the loop is over."""
        was_last = self.request.is_last(self.num_calls)
        ours, self.client_calls = split_calls(step.calls, self.request.client_tools)
        if self.branches.is_forced:
            ours, self.client_calls = [call for call in ours if call_name(call) == RETURN], []
        broken = self._find_format_error(step)
        if broken is not None:
            ours, self.client_calls = [], []
        if step.finish_reason == "length" or (was_last and not self.branches.is_forced):
            ours = []
        self.branches.client_calls = [call_name(call) for call in self.client_calls]
        done: list[Operation] = []
        open_now = self.turn.session.state.branch
        inside = {} if open_now is None else {"branch": open_now.call_id}
        token_ids = self._tokens_of(step)
        self.steps.append({"receipt": self.receipt, "operations": []} | inside | self._budget_json | token_ids)
        self.num_completion_tokens += step.num_completion_tokens
        self.refused |= keep_completion(self.turn, self._exchange, step.message, broken)
        turn, names = self.turn, self.request.tool_names
        tools = ContextTools(turn.server, turn.session, turn.options, turn.params.fidelity, names, self.branches)
        for call in ours:
            operation = await tools.carry_out(call, self.num_calls)
            self.num_calls += 1
            done.append(operation)
            self.steps[-1]["operations"].append(operation.as_dict())
            yield operation
        self.stopped_by = self._reason_to_stop(step, was_last, done, broken)
        rest = "" if broken else text_held_back(self._said, step.message, self.marks)
        step.message.update({"content": f"{step.message['content']}{rest}"} if rest else {})
        self.late_texts = self.spoken.end_step(last=self.stopped_by is not None, rest=rest)
        self._record(step, ours, done)

    def _find_format_error(self, step: Step) -> str | None:
        """A tool call of the step that nobody can read. One that was cut short is none."""
        if step.finish_reason == "length":
            return None
        found = find_format_error(self._said, step.message, self.marks)
        if found is not None:
            self.format_errors.append({"step": len(self.steps), "error": found})
        return found

    def _tokens_of(self, step: Step) -> dict[str, Any]:
        """The token ids and log probabilities of the step, where the client asks for them."""
        if not self.spoken.is_silent:
            self.tokens.add(step.payload["choices"][0])
        sampled = None if self._exchange is None else self._exchange.sampled
        return {} if sampled is None else self.request.tokens_of(sampled)

    def _reason_to_stop(self, step: Step, was_last: bool, done: list[Operation], broken: str | None) -> str | None:
        is_cut, state = step.finish_reason == "length", self.turn.session.state
        if self.branches.end_step(state, step.message, is_done=bool(done), is_cut=is_cut):
            return None
        if is_cut:
            return "length"
        if broken is not None:
            return "format_error"
        if self.client_calls:
            return "client_tools"
        if done:
            return None
        return "max_tool_calls" if was_last else "answer"

    def _record(self, step: Step, ours: list[Call], done: list[Operation]) -> None:
        """Append the step to the session: internal, or as the answer with what the client sees of it."""
        kept = [call for call in step.calls if call in ours or call in self.client_calls]
        message = {name: value for name, value in step.message.items() if name != "tool_calls"}
        message |= {"tool_calls": kept} if kept else {}
        results = [operation.message() for operation in done]
        state = self.turn.session.state
        if self.stopped_by is None:
            state = self.branches.settle(append_internal(state, [message, *results]))
        else:
            state = self.branches.settle(self.commits.end(state))
            answer = message | dict(self.turn.answer_fields)
            state = end_turn(append_internal(append_answer(state, answer, self.client_message()), results))
        turn = self.turn
        self.refused |= keep(turn.server, turn.session, state, must=self.stopped_by is None)
        if self.stopped_by is not None:
            frame = frame_of(self.request.frame(), self.request.preset_name)
            end_loop(turn, self.client_message(), frame, has_edited=self.commits.ended)

    def client_message(self) -> dict[str, Any]:
        """The assistant's message as the client has it at the end."""
        message: dict[str, Any] = {"role": "assistant", **self.spoken.message_texts()}
        if self.client_calls:
            message["tool_calls"] = self.client_calls
        return message
