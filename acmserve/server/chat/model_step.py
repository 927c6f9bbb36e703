"""One step of a tool loop: one answer of the model, read as vLLM gives it, whole or as a stream.

    vLLM's stream    {role} {"Let me"} {" look."} {tool_calls..} {tool_calls..} {finish_reason} {usage} [DONE]
                        |       |         |             '-- held back --'            |            |
    passed on        {role} {"Let me"} {" look."}                              kept in `Step`: the loop says how it ends

Text is passed on as it comes, and token ids where they are asked for. Tool calls wait until the step is complete,
because only then it is known whose they are. All steps of a loop look like one answer to the client: one id, one role,
texts joined by `JoinedText`.

It knows vLLM's answers. It knows neither tools nor sessions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse

from acmserve.server.chat.calls import text_before
from acmserve.server.chat.joined_text import JoinedText
from acmserve.server.chat.message_builder import MessageBuilder
from acmserve.server.vllm.handlers import create_error_response

TEXTS = ("content", "reasoning", "reasoning_content", "refusal")
_SHARED = ("id", "created")
_TOKENS = ("logprobs", "token_ids")


@dataclass(frozen=True, slots=True)
class Step:
    """A complete answer of the model. `payload` is vLLM's JSON, in a stream the chunk that ends it.

    `usage_chunk` is the last chunk of a stream whose client asked for it.
    """

    message: dict[str, Any]
    finish_reason: str | None
    payload: dict[str, Any]
    usage_chunk: dict[str, Any] | None = None

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The tool calls, `[]` where there are none."""
        calls: list[dict[str, Any]] = self.message.get("tool_calls") or []
        return calls

    @property
    def num_completion_tokens(self) -> int:
        """Tokens of the answer, 0 where the client did not ask for the usage of a stream."""
        usage = (self.usage_chunk or self.payload).get("usage") or {}
        return usage.get("completion_tokens") or 0


@dataclass(slots=True)
class StepTokens:
    """The token ids and log probabilities of all steps, as vLLM writes them where a client asks for them."""

    values: dict[str, Any] = field(default_factory=dict)

    def add(self, choice: Mapping[str, Any]) -> None:
        """Take in those of one step."""
        ids, logprobs = choice.get("token_ids"), choice.get("logprobs")
        if ids is not None:
            self.values["token_ids"] = [*self.values.get("token_ids", ()), *ids]
        if logprobs is not None:
            before = self.values.get("logprobs") or {"content": []}
            content = [*before["content"], *(logprobs.get("content") or ())]
            self.values["logprobs"] = {**logprobs, "content": content}


@dataclass(slots=True)
class Spoken:
    """What the client has received so far, over all steps: the texts by name, and what all chunks have in common.

    `is_silent`: nothing that the running step says is for the client. A step that is forced to call a tool says half a
    call as text where it is cut short.
    """

    texts: dict[str, JoinedText] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    is_silent: bool = False

    def share(self, payload: Mapping[str, Any]) -> None:
        """Take id and time of the first step."""
        if not self.shared:
            self.shared = {name: payload[name] for name in _SHARED if name in payload}

    def add(self, name: str, text: str) -> str:
        """Take in a text of the running step. Returns what may be sent to the client now."""
        return "" if self.is_silent else self.texts.setdefault(name, JoinedText()).add(text)

    def end_step(self, *, last: bool, rest: str = "") -> dict[str, str]:
        """End the step. Returns the texts that only now can be sent: `rest` of the content is one."""
        late = {"content": self.add("content", rest)} if rest else {}
        ended = {name: late.get(name, "") + text.end_step(last=last) for name, text in self.texts.items()}
        return {name: text for name, text in ended.items() if text}

    def message_texts(self) -> dict[str, Any]:
        """The texts of the client's message: always `content`, None where nothing was said."""
        values = {name: joined.text for name, joined in self.texts.items() if joined.text}
        return {"content": None} | values


def read_whole(body: bytes, spoken: Spoken, marks: Sequence[str] = ()) -> Step:
    """Read a JSON answer. A tool call that vLLM could not read begins with one of `marks`. The client gets none."""
    payload: dict[str, Any] = json.loads(body)
    spoken.share(payload)
    choice = payload["choices"][0]
    message = {"role": "assistant", "content": None}
    message |= {name: value for name, value in choice["message"].items() if value not in (None, [], "")}
    content = message.get("content")
    if isinstance(content, str) and "tool_calls" not in message:
        message["content"] = text_before(content, marks) or None
    for name in TEXTS:
        if isinstance(message.get(name), str):
            spoken.add(name, str(message[name]))
    return Step(message, choice.get("finish_reason"), payload)


def refused_answer(error: Exception) -> JSONResponse:
    """vLLM's own error body for an exception that its route function raised."""
    body = create_error_response(error)
    return JSONResponse(body.model_dump(), status_code=body.error.code)


class StepReader:
    """Reads one step's stream, event by event. `failed` turns true when vLLM reports an error in the stream."""

    def __init__(self, spoken: Spoken, num_completion_tokens: int, *, first: bool) -> None:
        self.failed = False
        self._spoken = spoken
        self._num_before = num_completion_tokens
        self._first = first
        self._builder = MessageBuilder()
        self._end: dict[str, Any] | None = None
        self._usage_chunk: dict[str, Any] | None = None

    def take(self, event: str) -> Iterator[str]:
        """Yield the events that the client gets now."""
        _, mark, data = event.partition("data: ")
        if not mark:
            yield event
        elif data.startswith("{"):
            chunk: dict[str, Any] = json.loads(data)
            if "error" in chunk:
                self.failed = True
                yield event
            else:
                yield from self._take_chunk(chunk)

    def step(self) -> Step | None:
        """The step, when it is complete."""
        if self._end is None:
            return None
        return Step(self._builder.message(), self._builder.finish_reason, self._end, self._usage_chunk)

    def _take_chunk(self, chunk: dict[str, Any]) -> Iterator[str]:
        self._spoken.share(chunk)
        chunk |= self._spoken.shared
        if not chunk.get("choices"):
            self._usage_chunk = chunk
            return
        delta = self._builder.add(chunk)
        choice = chunk["choices"][0]
        if self._spoken.is_silent:
            choice = _without_tokens(choice)
        values = self._passed_on(dict(delta))
        ends = choice.get("finish_reason") is not None
        if values or _has_tokens(choice):
            yield self._render(chunk, {**choice, "delta": values, "finish_reason": None})
            choice = _without_tokens(choice)
        if ends:
            self._end = {**chunk, "choices": [{**choice, "delta": {}}]}
        self._first = False

    def _render(self, chunk: Mapping[str, Any], choice: Mapping[str, Any]) -> str:
        usage = chunk.get("usage")
        counted = {"usage": add_completion_tokens(usage, self._num_before)} if usage else {}
        return render_event({**chunk, "choices": [choice], **counted})

    def _passed_on(self, delta: dict[str, Any]) -> dict[str, Any]:
        """The part of a delta that is passed on: its texts, and the role once in the whole answer."""
        values: dict[str, Any] = {}
        for name, value in delta.items():
            if name in TEXTS and isinstance(value, str):
                text = self._spoken.add(name, value)
                if text or self._first:
                    values[name] = text
            elif name == "role":
                values |= {name: value} if self._first else {}
            elif name != "tool_calls" and value is not None:
                values[name] = value
        return values


def _without_tokens(choice: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in choice.items() if name not in _TOKENS}


def _has_tokens(choice: Mapping[str, Any]) -> bool:
    """A chunk that carries log probabilities or token ids: those of tool calls, too, for they were asked for."""
    return any(choice.get(name) for name in _TOKENS)


def add_completion_tokens(usage: Mapping[str, Any], num_before: int) -> dict[str, Any]:
    """The usage of a step, the output of the steps before it counted too."""
    return {
        **usage,
        "completion_tokens": (usage.get("completion_tokens") or 0) + num_before,
        "total_tokens": (usage.get("total_tokens") or 0) + num_before,
    }


def render_event(payload: Mapping[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(payload, ensure_ascii=False, separators=(',', ':'))}\n\n"
