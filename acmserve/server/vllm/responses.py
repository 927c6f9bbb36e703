"""vLLM's own parts of the Responses protocol, as the sessions use them: items to messages, messages to items, events.

    request --chat_messages, chat_tools--> chat request        chat answer --output_items, Events--> response

vLLM's handler goes from items to tokens and back itself. Here its parts stand around a chat.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from openai.types.responses.response_output_text import Logprob
from vllm.entrypoints.generate.base.protocol import DeltaMessage, FunctionCall
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest as ResponsesRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesResponse
from vllm.entrypoints.openai.responses.streaming_events import (
    SimpleStreamingEventProcessor,
    SimpleStreamingState,
    split_delta,
)
from vllm.entrypoints.openai.responses.utils import (
    build_response_output_items,
    construct_input_messages,
    construct_tool_dicts,
    extract_tool_types,
    should_continue_final_message,
)


def chat_messages(request: ResponsesRequest) -> list[dict[str, Any]]:
    """The input as messages, without the instructions. Raises VLLMValidationError for an item that has no message."""
    messages: list[dict[str, Any]] = construct_input_messages(request_input=request.input)
    return messages


def chat_tools(request: ResponsesRequest) -> list[dict[str, Any]]:
    """The tools that a model can be offered, as a chat has them. Namespaces are flat, custom tools are functions."""
    return [_without_defaults(tool) for tool in construct_tool_dicts(request.tools, request.tool_choice) or ()]


def tool_types(request: ResponsesRequest) -> set[str]:
    """The kinds of tools that are asked for."""
    return extract_tool_types(request.tools)


def continues_answer(request: ResponsesRequest) -> bool:
    """Whether the input ends with an answer that is to be continued."""
    return bool(should_continue_final_message(request.input))


def output_items(message: Mapping[str, Any], request: ResponsesRequest, logprobs: Any = None) -> list[dict[str, Any]]:
    """A chat's message as the items of an output."""
    calls = [
        FunctionCall(id=call.get("id"), name=call["function"]["name"], arguments=call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]
    items = build_response_output_items(
        reasoning=message.get("reasoning"),
        content=message.get("content"),
        tool_calls=calls,
        logprobs=_logprobs(logprobs) or None,
        tools=request.tools,
    )
    return [item.model_dump(mode="json", by_alias=True) for item in items]


def response(
    request: ResponsesRequest, serving: Any, status: str, *, model: str, num_prompt: int, created: int | None = None
) -> dict[str, Any]:
    """A response without output and usage. `serving` is vLLM's handler of responses."""
    room = max(1, serving.model_config.max_model_len - num_prompt)
    plain = request.model_copy(update={"vllm_xargs": None, "kv_transfer_params": None})
    made = ResponsesResponse.from_request(
        plain,
        plain.to_sampling_params(room, serving.default_sampling_params),
        model_name=model,
        created_time=created or int(time.time()),
        output=[],
        status=status,
    )
    fields: dict[str, Any] = made.model_dump(mode="json", by_alias=True)
    return fields


class Events:
    """The events of an output, from the deltas of a chat. `first_index` is the place of the first item."""

    def __init__(self, request: ResponsesRequest, first_index: int = 0) -> None:
        self._processor = SimpleStreamingEventProcessor(SimpleStreamingState(output_index=first_index), request.tools)
        self._items: list[dict[str, Any]] = []

    def take(self, delta: Mapping[str, Any], logprobs: Any = None) -> Iterator[dict[str, Any]]:
        """The events of one delta."""
        processor = self._processor
        said = {name: value for name, value in delta.items() if value not in (None, "", [])}
        for part in split_delta(DeltaMessage.model_validate(said)):
            state, call = processor.resolve_target_state(part)
            if state.name == "NONE":
                continue
            if processor.needs_transition(state, call):
                yield from self.close()
                yield from _dumped(processor.open(state, call))
            yield from _dumped(processor.emit_delta(part, None, lambda _: _logprobs(logprobs)))

    def close(self) -> Iterator[dict[str, Any]]:
        """The events that end the item that is being written."""
        for event in _dumped(self._processor.close_current()):
            if event["type"] == "response.output_item.done":
                self._items.append(event["item"])
            yield event

    def output(self) -> list[dict[str, Any]]:
        """The items that are complete."""
        return list(self._items)


def _dumped(events: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for event in events:
        yield json.loads(event.model_dump_json(by_alias=True))


def _logprobs(given: Any) -> list[Logprob]:
    """The log probabilities of a chat's choice, which has the same fields."""
    return [Logprob.model_validate(token) for token in (given or {}).get("content") or ()]


def _without_defaults(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The tool without the fields that nobody set. What its schema says is the client's: there null is a value."""
    return {**tool, "function": {name: value for name, value in tool["function"].items() if value is not None}}
