"""One session request between its HTTP route and the engine, and the receipt on its way back.

The route knows the session but not the engine's answer object. The engine client sees both ends of `generate` but not
the HTTP answer. They meet in an `Exchange`, which the route puts into a context variable before it calls vLLM's own
handler. vLLM calls `generate` from that context (or from a task that copied it), so two requests never see each
other's. The variable is set for every request and never reset. For /v1/responses calls `generate` only when its stream
is read, after the route has returned. The variable ends with the request's task.

`tap_generate` wraps the engine client, and it checks every request last. Whatever route of vLLM a request came through,
an invalid session never reaches the engine core.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from acmserve.context.session.turns.turn import TurnEnd
from acmserve.context.transcript.message import Message
from acmserve.errors import InvalidRequest
from acmserve.plan.request import SessionParams
from acmserve.server.exchange.ended_request import EndedRequest, first_token_seconds, num_sampled
from acmserve.server.exchange.map_slot import Slot
from acmserve.server.exchange.redaction import Engines, generate_after_forgetting
from acmserve.server.exchange.sampled import SampledAnswers
from acmserve.server.exchange.scores import TokenScores
from acmserve.server.exchange.served_prompts import ServedContext
from acmserve.server.exchange.session_args import SamplingArgs, check_sent, read_session, send_session
from acmserve.server.exchange.turn_times import note_fallback, note_turn
from acmserve.server.http.tenants import CALLER, Tenants, account_of, engine_session_id, salt_in, salt_of, salted
from acmserve.server.speculation.speculator import EngineCall, Speculator
from acmserve.server.vllm.handlers import RequestOutputKind, VLLMValidationError
from acmserve.server.vllm.taps import Generate


class EngineOutput(Protocol):
    """The part of vLLM's RequestOutput that is read here (vllm/outputs.py:156)."""

    kv_transfer_params: dict[str, Any] | None
    num_cached_tokens: int | None
    num_cache_creation_tokens: int | None
    finished: bool


logger = logging.getLogger(f"vllm.{__name__}")


@dataclass(slots=True)
class Exchange:
    """`acm` is what the answer carries: `{"session_id", "receipt"}`, None until the engine has said it.

    `params` go to the engine. Its session id is the tenant's, `session_id` the one that the client knows. `served`
    looks up the memory of the session's chat, when a prompt passes. `messages` were rendered for this request.
    `on_send` is called whenever the prompt goes to the engine. `on_receipt` is called with the receipt and the seconds
    to the first token. `on_end` is called once for each request that was sent. What `fields` holds joins `acm`. `slot`
    is that of a context map in the prompt. A background request does not `remember` in `served` what it was, and may be
    cut by `num_cut` tokens at its end. `finished` turns true with the last output, before vLLM renders it: the
    rendering that follows is the answer's end. `sampled` takes the token ids, where somebody wants them, and `scores`
    the log probabilities.
    """

    params: SessionParams
    session_id: str = ""
    served: Callable[[], ServedContext] | None = None
    messages: Sequence[Message] = ()
    on_receipt: Callable[[Mapping[str, Any], float], None] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    slot: Slot | None = None
    remembers: bool = True
    num_cut: int = 0
    on_send: Callable[[], None] = lambda: None
    on_end: Callable[[EndedRequest], None] | None = None
    sampled: SampledAnswers | None = None
    scores: TokenScores | None = None
    acm: dict[str, Any] | None = None
    finished: bool = False
    _prompt: list[int] = field(default_factory=list)
    _token_ids: list[int] = field(default_factory=list)
    _texts: list[str] = field(default_factory=list)
    _in_deltas: bool = False
    _request_id: str = ""
    _sent_at: float = 0.0
    _seconds: float | None = None
    _first_token: float | None = None
    _receipt: Mapping[str, Any] | None = None
    _num_output: int = 0
    _has_ended: bool = True

    def __post_init__(self) -> None:
        self.session_id = self.session_id or self.params.session_id

    @property
    def prompt(self) -> Sequence[int]:
        """The tokens that went to the engine. Empty where the prompt is not of text alone."""
        return self._prompt

    @property
    def receipt(self) -> dict[str, Any] | None:
        """What `acm` says of it."""
        return None if self.acm is None else self.acm["receipt"]

    @property
    def said(self) -> str:
        """The answer as far as it has come, in the very text of the model: tool calls included."""
        return "".join(self._texts)

    @property
    def num_cut_off(self) -> int | None:
        """Tokens of the session's last prompt behind what this one begins with. None where nobody remembers it."""
        return None if self.served is None else self.served().num_cut_off(self._prompt)

    def add_fields(self, fields: Mapping[str, Any]) -> None:
        """Let these fields join `acm`, which may be known already."""
        self.fields = {**self.fields, **fields}
        if self.acm is not None:
            self.acm = {**self.acm, **fields}

    def send(self, sampling_params: SamplingArgs, request_id: str = "") -> None:
        """Put the session into the arguments that travel to the engine core."""
        self.on_send()
        send_session(sampling_params, self.params)
        if self.scores is not None:
            self.scores.ask(sampling_params)
        self._request_id, self._sent_at, self._has_ended = request_id, time.monotonic(), False
        self._seconds = self._first_token = self._receipt = None
        self._num_output = 0
        self._in_deltas = getattr(sampling_params, "output_kind", None) is RequestOutputKind.DELTA
        if self.sampled is not None:
            self.sampled.begin()

    def prepare(self, prompt: Any, num_room: int) -> Any:
        """The prompt with the session's own outputs as the tokens that were sampled, in at most `num_room` tokens.

        A slot is filled last: what takes its place is shorter than its placeholder. Where the engine may want to know,
        the parameters learn which pieces a later edit may take out. Raises InvalidRequest.
        """
        if self.served is None or not isinstance(prompt, dict) or prompt.get("type") != "token":
            if self.slot is not None:
                raise InvalidRequest("acm.map.placement", "'head' needs a prompt of text alone.", "Send 'tail'.")
            return prompt
        given = None if self.scores is None else self.scores.prompt
        self._prompt = list(given or ()) or self.served().splice(prompt["prompt_token_ids"], num_room)
        if self.slot is not None:
            self._prompt = self.slot.fill(self._prompt)
        if self.num_cut:
            self._prompt = self._prompt[: max(1, len(self._prompt) - self.num_cut)]
        pieces = self.served().pieces
        if self.messages and pieces.is_wanted:
            self.params = replace(self.params, foldable=pieces.find(self._prompt, self.messages))
        return {**prompt, "prompt_token_ids": self._prompt}

    def receive(self, output: EngineOutput) -> None:
        """Take the receipt out of an engine output, so that it appears once in the answer.

        A request may pass the engine several times (tool loops of /v1/responses): the last receipt counts.
        """
        self.finished = output.finished
        if self.scores is not None:
            self.scores.take(output, in_deltas=self._in_deltas)
        if self.sampled is not None:
            self.sampled.take(output, in_deltas=self._in_deltas)
        self._num_output = num_sampled(output) + (self._num_output if self._in_deltas else 0)
        if self._seconds is None:
            measured, waited = first_token_seconds(output), time.monotonic() - self._sent_at
            self._seconds = waited if measured is None else min(measured, waited)
            if measured is not None or self._in_deltas:
                self._first_token = self._seconds
        transfer = output.kv_transfer_params
        if transfer is not None and "acm" in transfer:
            self.acm = {**transfer["acm"], "session_id": self.session_id, **self.fields}
            if self.served is not None and self.params.foldable:
                self.served().pieces.learn(transfer["acm"]["receipt"])
            count_moved(output, transfer["acm"]["receipt"])
            is_first, self._receipt = self._receipt is None, transfer["acm"]["receipt"]
            if is_first:
                self._note(output, transfer["acm"]["receipt"], self._seconds)
            output.kv_transfer_params = {k: v for k, v in transfer.items() if k != "acm"} or None
        if self.served is not None and self.remembers:
            self._remember(output, self.served())
        if self.finished and self.acm is None:
            logger.warning("acmserve: an answer of session %r ends without a receipt", self.session_id)
        if self.finished:
            self.end(TurnEnd.ANSWERED)

    def end(self, end: TurnEnd) -> None:
        """The request has ended. What is said of it later, because its generator is closed, is nothing new."""
        if self._has_ended:
            return
        self._has_ended = True
        if self.on_end is not None:
            seconds = time.monotonic() - self._sent_at
            num_tokens = len(self._prompt) if self._receipt is None else self._receipt["prompt_tokens"]
            times = (self._first_token, seconds)
            self.on_end(EndedRequest(self._request_id, self._receipt, num_tokens, self._num_output, *times, end))

    def _note(self, output: EngineOutput, receipt: Mapping[str, Any], seconds: float) -> None:
        if self.served is not None and not self.params.precompute:
            note_fallback(self.session_id, receipt)
            note_turn(self.served(), self._prompt, receipt, first_token_seconds(output))
        if self.on_receipt is not None:
            self.on_receipt(receipt, seconds)

    def _remember(self, output: Any, served: ServedContext) -> None:
        for completion in output.outputs:
            if completion.index != 0:
                continue
            if not self._in_deltas:
                self._token_ids, self._texts = [], []
            self._token_ids.extend(completion.token_ids)
            self._texts.append(completion.text)
        if self.finished and self.acm is not None and self._prompt:
            answer = "".join(self._texts)
            served.remember_output(answer, self._token_ids)
            served.record(self.messages, self._prompt, self.acm["receipt"], answer)
            served.scored = None if self.scores is None else self.scores.scored()


def count_moved(output: EngineOutput, receipt: Mapping[str, Any]) -> None:
    """Have vLLM report moved tokens as cached ones. Every usage of every route is made from these two counts.

    vLLM's    [ hit ][ written to the cache by this request )         computed and moved alike
    ours      [ kept + moved ][ written )                             what was computed and is in the cache now
    """
    num_in_cache = (output.num_cached_tokens or 0) + (output.num_cache_creation_tokens or 0)
    output.num_cached_tokens = receipt["kept_tokens"] + receipt["moved_tokens"]
    output.num_cache_creation_tokens = max(0, num_in_cache - output.num_cached_tokens)


CURRENT: ContextVar[Exchange | None] = ContextVar("acmserve_exchange", default=None)


def tap_generate(
    generate: Generate,
    max_model_len: int = 0,
    tenants: Tenants | None = None,
    engines: Engines | None = None,
    speculator: Speculator | None = None,
) -> Generate:
    """Wrap the engine client's `generate` (vllm/v1/engine/async_llm.py:698).

    With an exchange in the context: send its session, receive its receipt. Without: check, raising
    VLLMValidationError (vLLM answers 400), name the session for its tenant, and hand over the very generator that
    vLLM returned. Every prompt gets the salt of its API key, and that of its request's header. Where there are several
    engines, a request that forgets has all of them forget (`redaction.py`).
    """
    engines = engines or Engines()

    def send(
        params: SessionParams | None, on_send: Callable[[], None], prompt: Any, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        if params is None or not params.forget or engines.num_engines == 1:
            return generate(prompt, *args, **kwargs)
        try:
            engines.check_reaches_all()
        except InvalidRequest as error:
            raise VLLMValidationError(f"{error.message} {error.remedy}", parameter=error.field) from error
        return generate_after_forgetting(generate, engines, params, on_send, prompt, *args, **kwargs)

    def tapped(prompt: Any, sampling_params: SamplingArgs, request_id: str, **kwargs: Any) -> AsyncGenerator[Any, None]:
        exchange = CURRENT.get()
        check_sent(sampling_params)
        if exchange is None:
            params = read_session(sampling_params, kwargs.get("session_id"))
            tenant = "" if tenants is None else tenants.of(CALLER.get({}), salt_of(prompt))
            if params is not None and tenants is not None:
                name = engine_session_id(tenant, params.session_id)
                params = replace(params, session_id=name, account=account_of(tenant))
                sampling_params = copy.copy(sampling_params)
                send_session(sampling_params, params)
            if tenants is not None:
                prompt = salted(prompt, tenants, account_of(tenant), salt_in(CALLER.get({})))
            return send(params, lambda: None, prompt, sampling_params, request_id, **kwargs)
        prompt = exchange.prepare(prompt, max_model_len - (getattr(sampling_params, "max_tokens", None) or 0))
        exchange.send(sampling_params, request_id)
        if tenants is not None:
            prompt = salted(prompt, tenants, exchange.params.account, salt_in(CALLER.get({})))
        if exchange.params.forget and engines.num_engines > 1:
            exchange.fields = {**exchange.fields, "forgotten_by": engines.num_engines}
        if speculator is not None and speculator.is_wanted(exchange.params):
            num_cut_off, on_send = exchange.num_cut_off, exchange.on_send
            asked = EngineCall(exchange.params, prompt, sampling_params, request_id, num_cut_off, kwargs, on_send)
            drafted = speculator.answer(asked, exchange.add_fields)
            if drafted is not None:
                return _received(drafted, exchange)
        sent = send(exchange.params, exchange.on_send, prompt, sampling_params, request_id, **kwargs)
        return _received(sent, exchange)

    return tapped


async def _received(outputs: AsyncGenerator[Any, None], exchange: Exchange) -> AsyncGenerator[Any, None]:
    try:
        async with aclosing(outputs):
            async for output in outputs:
                exchange.receive(output)
                yield output
    except Exception:
        exchange.end(TurnEnd.FAILED)
        raise
    finally:
        exchange.end(TurnEnd.ABORTED)
