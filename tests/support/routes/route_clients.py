"""One conversation over three routes, with the vendors' own clients: an agent that does not know which one it uses.

history   system, user, assistant (text, calls), results, user         in OpenAI's chat form
ask()     /v1/chat/completions | /v1/messages | /v1/responses          streamed or not
Reply     text, reasoning, calls, usage, acm, how it ended             the same for all of them
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.routes.vendor_clients import anthropic_client, openai_client
from tests.support.server.scripted_server import MODEL

CHAT, MESSAGES, RESPONSES = "chat", "messages", "responses"
ROUTES = (CHAT, MESSAGES, RESPONSES)
Message = dict[str, Any]


@dataclass
class Reply:
    """What an agent has at the end. `told` are the `acm` of what came between, `raw` is what it sends back."""

    text: str
    calls: list[tuple[str, str, Any]]
    num_prompt: int
    num_output: int
    acm: dict[str, Any]
    end: str
    raw: Any
    edited: Any = None
    reasoning: str = ""
    told: list[dict[str, Any]] = field(default_factory=list)

    def as_message(self) -> Message:
        """The answer in a history."""
        calls = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for call_id, name, arguments in self.calls
        ]
        return {"role": "assistant", "content": self.text} | ({"tool_calls": calls} if calls else {})


@dataclass
class Agent:
    """A client of one route."""

    server: str
    route: str
    stream: bool = False

    def ask(self, session: str | None, history: Sequence[Message], script: Sequence[str] = (), **more: Any) -> Reply:
        """One answer. `more` are fields of ours beside the session, and `tools` in OpenAI's chat form."""
        tools = more.pop("tools", [])
        extra = {"cache_salt": more.pop("cache_salt", None)} | more
        if session is not None:
            extra["session_id"] = session
        if script:
            extra["vllm_xargs"] = {"script_id": uuid.uuid4().hex, "script": list(script)}
        extra = {name: value for name, value in extra.items() if value is not None}
        return {CHAT: self._chat, MESSAGES: self._messages, RESPONSES: self._responses}[self.route](
            history, tools, extra
        )

    def _chat(self, history: Sequence[Message], tools: list[Any], extra: dict[str, Any]) -> Reply:
        asked: dict[str, Any] = {"model": MODEL, "messages": list(history), "max_tokens": 600, "temperature": 0}
        asked |= {"extra_body": extra} | ({"tools": tools} if tools else {})
        told: list[dict[str, Any]] = []
        more: dict[str, Any] = {}
        with openai_client(self.server) as client:
            if self.stream:
                with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
                    for chunk in [event.chunk for event in events if event.type == "chunk"]:
                        extras = chunk.model_extra or {}
                        is_told = "event" in (extras.get("acm") or {})
                        told += [extras["acm"]] if is_told else []
                        more |= {} if is_told else extras
                    answer = events.get_final_completion()
            else:
                answer = client.chat.completions.create(**asked)
                more = answer.model_extra or {}
        message, usage = answer.choices[0].message, answer.usage
        calls = [(c.id, c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or ()]
        acm, edited = more.get("acm", {}), more.get("context_management")
        end = str(answer.choices[0].finish_reason)
        return Reply(
            message.content or "",
            calls,
            usage.prompt_tokens,
            usage.completion_tokens,
            acm,
            end,
            message,
            edited,
            told=told,
        )

    def _messages(self, history: Sequence[Message], tools: list[Any], extra: dict[str, Any]) -> Reply:
        system, messages = to_anthropic(history)
        asked: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": 600}
        asked |= {"extra_body": extra} | ({"system": system} if system else {})
        if tools:
            asked["tools"] = [
                {
                    "name": tool["function"]["name"],
                    "description": tool["function"]["description"],
                    "input_schema": tool["function"]["parameters"],
                }
                for tool in tools
            ]
        told: list[dict[str, Any]] = []
        with anthropic_client(self.server) as client:
            if self.stream:
                acm, edited = {}, None
                with client.messages.stream(**asked) as events:
                    for event in events:
                        if event.type == "message_delta":
                            acm = (event.model_extra or {}).get("acm", {})
                            edited = (event.model_extra or {}).get("context_management")
                    answer = events.get_final_message()
            else:
                answer = client.messages.create(**asked)
                acm = (answer.model_extra or {}).get("acm", {})
                edited = (answer.model_extra or {}).get("context_management")
        text = "".join(block.text for block in answer.content if block.type == "text")
        thought = "".join(block.thinking for block in answer.content if block.type == "thinking")
        calls = [(block.id, block.name, block.input) for block in answer.content if block.type == "tool_use"]
        usage = answer.usage
        num_prompt = (
            usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
        )
        end = str(answer.stop_reason)
        return Reply(text, calls, num_prompt, usage.output_tokens, acm, end, answer.content, edited, thought, told)

    def _responses(self, history: Sequence[Message], tools: list[Any], extra: dict[str, Any]) -> Reply:
        asked: dict[str, Any] = {"model": MODEL, "input": to_items(history), "max_output_tokens": 600, "temperature": 0}
        asked |= {"extra_body": extra, "store": False}
        if tools:
            asked["tools"] = [{"type": "function", **tool["function"]} for tool in tools]
        told = []
        with openai_client(self.server) as client:
            if self.stream:
                answer = None
                for event in client.responses.create(**asked, stream=True):
                    if event.type == "response.in_progress" and "event" in (event.model_extra or {}).get("acm", {}):
                        told.append((event.model_extra or {})["acm"])
                    if event.type in ("response.completed", "response.failed"):
                        answer = event.response
                assert answer is not None
            else:
                answer = client.responses.create(**asked)
        return read_response(answer, told)


def read_response(answer: Any, told: Sequence[dict[str, Any]] = ()) -> Reply:
    """A response of OpenAI's client."""
    calls = [
        (item.call_id, item.name, json.loads(item.arguments)) for item in answer.output if item.type == "function_call"
    ]
    thoughts = [part.text for item in answer.output if item.type == "reasoning" for part in item.content or ()]
    more = answer.model_extra or {}
    acm, edited = more.get("acm", {}), more.get("context_management")
    usage = answer.usage
    return Reply(
        answer.output_text,
        calls,
        usage.input_tokens,
        usage.output_tokens,
        acm,
        answer.status,
        answer.output,
        edited,
        "".join(thoughts),
        list(told),
    )


def to_anthropic(history: Sequence[Message]) -> tuple[str, list[Message]]:
    """The history as Anthropic's clients write it: the first system message apart, results in the user's blocks."""
    system, messages = "", []
    for index, message in enumerate(history):
        if message["role"] == "system" and index == 0:
            system = message["content"]
        elif message["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
            if not messages or messages[-1]["role"] != "user" or not isinstance(messages[-1]["content"], list):
                messages.append({"role": "user", "content": []})
            messages[-1]["content"].append(block)
        elif message.get("tool_calls"):
            blocks: list[dict[str, Any]] = [{"type": "text", "text": message["content"]}] if message["content"] else []
            for call in message["tool_calls"]:
                arguments = json.loads(call["function"]["arguments"])
                blocks.append(
                    {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": arguments}
                )
            messages.append({"role": "assistant", "content": blocks})
        else:
            messages.append({"role": message["role"], "content": message["content"]})
    return system, messages


def to_items(history: Sequence[Message]) -> list[dict[str, Any]]:
    """The history as items of the Responses API."""
    items: list[dict[str, Any]] = []
    for message in history:
        if message["role"] == "tool":
            items.append(
                {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
            )
            continue
        kind = "output_text" if message["role"] == "assistant" else "input_text"
        if message["content"]:
            content = [{"type": kind, "text": message["content"]}]
            items.append({"type": "message", "role": message["role"], "content": content})
        items += [
            {
                "type": "function_call",
                "call_id": call["id"],
                "name": call["function"]["name"],
                "arguments": call["function"]["arguments"],
            }
            for call in message.get("tool_calls") or ()
        ]
    return items


def text_of(value: Mapping[str, Any]) -> str:
    """Every text of a context view, joined."""
    return json.dumps(value, ensure_ascii=False)
