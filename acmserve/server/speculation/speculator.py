"""Speculative exactness: `exact` answers behind an edit, drafted on moved KV while their prompt is prefilled.

    draft    reuse [moved prompt] d0 d1 d2 d3 .......... d60      |          never shown, no source
    exact          [prefill .............................] t0     |          compared with d0, and shown at once
    verify                                [cached prompt] d0 .. d59 -> d60?  one pass: is each the likeliest token?
    rest                                                             t61 ..  decoded as ever

What the client gets are the tokens that `exact` gives. The draft decides when they come, and never what they are. A
draft is the likeliest token by token, so is the exact answer, and so is what verification counts. So the request has to
be greedy. Every parameter that changes which token is the likeliest refuses it (`find_parameter_refusal`).

Decision: the draft goes first, and the exact request follows behind its first token. Where nothing could be moved, the
draft has computed the prompt exactly. Then the exact request finds all of it in the prefix cache, and nothing is lost.

Decision: a draft is verified once. Behind a rejected token the exact request decodes as fast as a new draft would.

Decision: a draft that fails costs its tokens alone. The exact request is sent, and fails by itself where it has to.

Decision: each request but the draft is told of as it is sent. What was redacted meanwhile the engine has forgotten, and
the prompt brings it there again. A draft leaves no source.

Decision: verification is a request with `prompt_logprobs`, and no drafter inside the engine. vLLM's drafters are bound
to one model runner each, are set at start for all requests, and exclude a drafter of the user's own.

It knows engine requests and sampling parameters. It knows neither sessions nor routes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from acmserve.plan.request import SessionParams
from acmserve.server.speculation.draft import Draft
from acmserve.server.vllm.prompt_scores import score_last_tokens
from acmserve.server.vllm.stitched_answer import (
    StitchedAnswer,
    find_parameter_refusal,
    num_likeliest,
    tokens_only,
)
from acmserve.server.vllm.taps import Generate

MIN_PREFILL_TOKENS = 512
"""Behind an edit. A shorter prefill leaves a draft no time."""
MIN_DRAFTED_TOKENS = 4
"""With fewer ones another request costs more than it saves."""
MAX_DRAFTED_TOKENS = 256
"""Each is a row of logits in the pass that verifies them."""

NOT_EDITED = "edit: no long text stands behind one"
NOT_MOVED = "draft: no KV could be moved for it"
FAILED = "draft: the engine failed it"
TOO_SHORT = "draft: the exact answer began before it had said enough"
OTHER_TOKEN = "draft: the first exact token is another one"


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One request to the engine. `num_cut_off` tokens of the session's last prompt stood behind what this one keeps of
    it, None where nobody knows. `on_send` is called as each part of it but the draft is sent."""

    params: SessionParams
    prompt: Mapping[str, Any]
    sampling: Any
    request_id: str
    num_cut_off: int | None
    kwargs: Mapping[str, Any]
    on_send: Callable[[], None] = lambda: None

    @property
    def tokens(self) -> list[int]:
        """The prompt."""
        return list(self.prompt["prompt_token_ids"])


@dataclass(frozen=True, slots=True)
class Speculation:
    """What became of a draft, as the answer says it. `reason` is None where it was verified."""

    drafted_tokens: int = 0
    accepted_tokens: int = 0
    reason: str | None = None

    def as_fields(self) -> dict[str, Any]:
        """The field that joins `acm`."""
        counts = {"drafted_tokens": self.drafted_tokens, "accepted_tokens": self.accepted_tokens}
        return {"speculation": {**counts, "reason": self.reason}}


_LENGTH = "length"
_OWN_ENDS = (None, _LENGTH, "stop")

Tell = Callable[[Mapping[str, Any]], None]


class Speculator:
    """Answers requests that ask for drafts. `by_default`: those that say nothing do, too.

    `tokenizer` gives the served model's. `num_engines` above one refuses: draft and answer have to meet in one cache.
    `refusal` says why no answer of this server can be verified, None where some can.
    """

    verifies = True
    """Negative control: without verification the draft is the answer."""

    def __init__(
        self,
        generate: Generate,
        tokenizer: Callable[[], Any],
        max_model_len: int,
        *,
        by_default: bool = False,
        default_fidelity: str = "exact",
        num_engines: int = 1,
        refusal: str | None = None,
    ) -> None:
        self._generate = generate
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._by_default = by_default
        self._default_fidelity = default_fidelity
        self._num_engines = num_engines
        self._refusal = refusal

    def is_wanted(self, params: SessionParams) -> bool:
        """Whether a request asks for a draft. A server's default is for answers under `exact`."""
        if params.speculate is not None:
            return params.speculate
        return self._by_default and not params.precompute and self._fidelity(params) == "exact"

    def find_refusal(self, asked: EngineCall) -> str | None:
        """Why a request is answered without a draft. None where one may help."""
        params, prompt = asked.params, asked.prompt
        if self._fidelity(params) != "exact":
            return f"fidelity: {self._fidelity(params)} is not verified"
        if params.forget or params.precompute:
            return "session: something was redacted" if params.forget else "request: it is precomputed"
        if self._refusal is not None:
            return self._refusal
        if self._num_engines > 1:
            return f"engine: {self._num_engines} engines do not share a cache"
        if not isinstance(prompt, Mapping) or prompt.get("type") != "token":
            return "prompt: it is not of text alone"
        if not asked.sampling.max_tokens or self._num_answer(asked) < MIN_DRAFTED_TOKENS:
            return f"max_tokens: fewer than {MIN_DRAFTED_TOKENS} are asked for"
        refused = find_parameter_refusal(asked.sampling)
        if refused is not None:
            return f"sampling: {refused}"
        num_movable = len(asked.tokens) if asked.num_cut_off is None else asked.num_cut_off
        return NOT_EDITED if num_movable < MIN_PREFILL_TOKENS else None

    def answer(self, asked: EngineCall, tell: Tell) -> AsyncGenerator[Any, None] | None:
        """The outputs of a request with a draft. `tell` gets what became of it before the last one.

        None for a request without a draft, of which `tell` has the reason. Who calls sends it as any other.
        """
        refused = self.find_refusal(asked)
        if refused is None:
            return self._drafted(asked, tell)
        tell(Speculation(reason=refused).as_fields())
        return None

    def _fidelity(self, params: SessionParams) -> str:
        return params.fidelity or self._default_fidelity

    async def _drafted(self, asked: EngineCall, tell: Tell) -> AsyncGenerator[Any, None]:
        draft = Draft(self._send_draft(asked))
        try:
            await draft.start()
            if not draft.num_moved:
                await draft.stop()
            first = await self._first(asked)
        finally:
            await draft.stop()
        answer = StitchedAnswer(self._tokenizer(), asked.sampling, first)
        found = _compared(draft, first)
        tell(found.as_fields())
        # One token was asked for, so its end by length is not the end of the answer. Any other end is.
        ended = first.outputs[0]
        if ended.finish_reason != _LENGTH:
            outputs = _told(answer, first)
        elif found.reason is None:
            outputs = self._verified(asked, draft.tokens, answer, tell)
        else:
            outputs = self._rest(asked, list(ended.token_ids), 0, answer)
        async with aclosing(outputs):
            async for output in outputs:
                yield output

    async def _first(self, asked: EngineCall) -> Any:
        """The first exact token. When it is there, the exact KV of the prompt is, too."""
        async with aclosing(self._send(asked, "", asked.tokens, 1)) as outputs:
            return [output async for output in outputs][-1]

    async def _verified(
        self, asked: EngineCall, drafted: list[int], answer: StitchedAnswer, tell: Tell
    ) -> AsyncGenerator[Any, None]:
        """The answer from its first token on, which is known. The last one is compared with what the pass samples."""
        tell(Speculation(len(drafted), 1).as_fields())
        for told in answer.add(drafted[:1]):
            yield told
        if answer.is_finished:
            return
        num_before = num_accepted = len(drafted) - 1
        prompt = [*asked.tokens, *drafted[:-1]]
        outputs = self._send(asked, "verify", prompt, self._num_answer(asked) - num_before, num_before)
        is_first = True
        async with aclosing(outputs):
            async for output in outputs:
                if is_first and not _is_cut_off(output):
                    if self.verifies:
                        num_accepted = num_likeliest(output, num_before, 1)
                    agrees = list(output.outputs[0].token_ids[:1]) == drafted[-1:]
                    is_whole = num_accepted == num_before
                    tell(Speculation(len(drafted), num_accepted + (is_whole and agrees)).as_fields())
                    if not is_whole:
                        break
                    for told in answer.add(drafted[1:-1]):
                        yield told
                is_first = False
                for told in () if answer.is_finished else _shown(answer, output):
                    yield told
                if answer.is_finished:
                    return
        async with aclosing(self._rest(asked, drafted[:num_accepted], 1, answer)) as rest:
            async for output in rest:
                yield output

    async def _rest(
        self, asked: EngineCall, tokens: list[int], num_told: int, answer: StitchedAnswer
    ) -> AsyncGenerator[Any, None]:
        """The answer that begins with `tokens`, decoded to its end. The first `num_told` of them were shown."""
        for told in answer.add(tokens[num_told:]):
            yield told
        if answer.is_finished:
            return
        outputs = self._send(asked, "rest", [*asked.tokens, *tokens], self._num_answer(asked) - len(tokens))
        async with aclosing(outputs):
            async for output in outputs:
                for told in _shown(answer, output):
                    yield told
                if answer.is_finished:
                    return

    def _num_answer(self, asked: EngineCall) -> int:
        """Tokens that the answer may have."""
        return int(min(asked.sampling.max_tokens, self._max_model_len - len(asked.tokens)))

    def _send_draft(self, asked: EngineCall) -> AsyncGenerator[Any, None]:
        params = replace(asked.params, fidelity="reuse", draft=True, unrecorded=True, foldable=())
        sampling = tokens_only(asked.sampling, min(self._num_answer(asked), MAX_DRAFTED_TOKENS))
        sampling.extra_args["kv_transfer_params"]["acm"] = params.as_acm()
        return self._generate(asked.prompt, sampling, f"{asked.request_id}-draft", **asked.kwargs)

    def _send(
        self, asked: EngineCall, name: str, tokens: list[int], num_answer: int, num_scored: int = 0
    ) -> AsyncGenerator[Any, None]:
        sampling = tokens_only(asked.sampling, num_answer)
        if num_scored:
            score_last_tokens(sampling, num_scored)
        prompt = {**asked.prompt, "prompt_token_ids": tokens}
        request_id = f"{asked.request_id}-{name}" if name else asked.request_id
        asked.on_send()
        return self._generate(prompt, sampling, request_id, **asked.kwargs)


def _compared(draft: Draft, output: Any) -> Speculation:
    """What the first exact token says of a draft. With a reason there is nothing to verify."""
    reason = None
    if draft.failed:
        reason = FAILED
    elif not draft.num_moved:
        reason = NOT_MOVED
    elif len(draft.tokens) < MIN_DRAFTED_TOKENS or output.outputs[0].finish_reason != _LENGTH:
        reason = TOO_SHORT
    elif list(output.outputs[0].token_ids[:1]) != draft.tokens[:1]:
        reason = OTHER_TOKEN
    return Speculation(len(draft.tokens), 0, reason)


def _is_cut_off(output: Any) -> bool:
    """Whether the engine ended a request by itself: it was paused, or it failed. Nothing is sent in its place."""
    return output.outputs[0].finish_reason not in _OWN_ENDS


async def _told(answer: StitchedAnswer, output: Any) -> AsyncGenerator[Any, None]:
    for shown in _shown(answer, output):
        yield shown


def _shown(answer: StitchedAnswer, output: Any) -> list[Any]:
    """The outputs of an answer for one of an engine request."""
    completion = output.outputs[0]
    return list(answer.add(completion.token_ids, completion.finish_reason, completion.stop_reason))
