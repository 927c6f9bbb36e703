"""An agent that works through tasks in one conversation and marks its episodes with `delimiter`. A scripted model says
the calls, and the client answers its own tools, as clients do."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Any

from tests.support import http
from tests.support.routes.vendor_clients import openai_client
from tests.support.server.scripted_server import MODEL
from tests.support.server.scripts import log_lines, new_session, tool_call

SYSTEM = "You keep the records of a valley."


def client_tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    return {"type": "function", "function": {"name": name, "description": f"Call {name}.", "parameters": parameters}}


def delimit(**arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'delimiter', 'arguments': arguments})}\n</tool_call>"


TOOLS = [client_tool(name) for name in ("grep", "read", "edit")]


@dataclass
class Agent:
    """The client: it resends everything, and never hears of episodes or evictions."""

    server: str
    budget: dict[str, Any]
    fidelity: str = "reuse"
    session: str = field(default_factory=new_session)
    messages: list[dict[str, Any]] = field(default_factory=lambda: [{"role": "system", "content": SYSTEM}])
    steps: list[dict[str, Any]] = field(default_factory=list)
    num_turns: int = 0
    stream: bool = False

    def turn(self, *script: str, **acm: Any) -> dict[str, Any]:
        """One request, in which the model says the lines of `script`. Tool calls are answered with lines of a log."""
        body = {
            "session_id": self.session,
            "acm": {"tools": "cwl", "fidelity": self.fidelity, "budget": self.budget} | acm,
            "vllm_xargs": {"script_id": uuid.uuid4().hex, "script": list(script)},
        }
        message, acm_said = self._ask(body)
        self.messages.append(message)
        for call in message.get("tool_calls") or ():
            num_lines = {"grep": 14, "read": 10, "edit": 2}[call["function"]["name"]]
            content = log_lines(num_lines, first=37 * self.num_turns)
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        self.num_turns += 1
        assert not any(operation["is_error"] for step in acm_said["steps"] for operation in step["operations"])
        self.steps += acm_said["steps"]
        return acm_said

    def _ask(self, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The model's message, and what the server says of it."""
        arguments: dict[str, Any] = {"model": MODEL, "messages": self.messages, "tools": TOOLS, "max_tokens": 400}
        arguments |= {"temperature": 0, "extra_body": body}
        with openai_client(self.server) as client:
            if not self.stream:
                answer = client.chat.completions.create(**arguments)
                return answer.choices[0].message.model_dump(exclude_none=True), answer.model_extra["acm"]
            chunks = list(client.chat.completions.create(**arguments, stream=True))
        deltas = [chunk.choices[0].delta for chunk in chunks]
        message: dict[str, Any] = {"role": "assistant", "content": "".join(delta.content or "" for delta in deltas)}
        calls = [call.model_dump(exclude_none=True) for delta in deltas for call in delta.tool_calls or ()]
        if calls:
            message["tool_calls"] = [{name: value for name, value in call.items() if name != "index"} for call in calls]
        said = [chunk.model_extra["acm"] for chunk in chunks if chunk.model_extra and "acm" in chunk.model_extra]
        return message, said[-1]

    def task(self, number: int) -> None:
        """Three requests: explore, act, say that it is done."""
        self.messages.append({"role": "user", "content": f"Task {number}: set the gauge of mill {number}."})
        start = delimit(action="start", name=f"find-{number}", type="expl")
        self.turn(f"I look for mill {number}.\n{start}", tool_call("grep", path=f"mill-{number}"))
        end = delimit(action="end", description=f"mill {number} is in line {number * 7}")
        act = delimit(action="start", name=f"set-{number}", type="act", dependencies=[f"find-{number}"])
        self.turn(f"{end}\n{act}", tool_call("edit", path=f"mill-{number}"))
        self.turn(delimit(action="end"), f"Mill {number} is set.")

    def get(self, what: str) -> Any:
        return http.get(f"{self.server}/v1/acm/sessions/{self.session}/{what}").raise_for_status().json()

    @property
    def evictions(self) -> list[int]:
        """The steps in front of which something was evicted."""
        return [index for index, step in enumerate(self.steps) if step["budget"]["evicted_tokens"]]

    def num_new(self, index: int) -> int:
        """Tokens that a step had and the one before had not, the notes of evicted explorations among them."""
        step, before = self.steps[index], self.steps[index - 1]
        num_left = before["receipt"]["prompt_tokens"] - step["budget"]["evicted_tokens"]
        return int(step["receipt"]["prompt_tokens"] - num_left)
