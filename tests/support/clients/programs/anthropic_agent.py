"""An agent on Anthropic's python client: streamed messages, one tool, the history in a file."""

from __future__ import annotations

import json
from typing import Any

import anthropic

from tests.support.clients.programs.line_loop import INSTRUCTIONS, MODEL, arguments, loop, run_command

URL, FILE = arguments()
TOOL: Any = {
    "name": "bash",
    "description": "Run a command.",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
CLIENT = anthropic.Anthropic(base_url=URL, api_key="unused")
HISTORY: list[Any] = json.loads(FILE.read_text()) if FILE.exists() else []


def turn(words: str) -> tuple[str, int | None]:
    HISTORY.append({"role": "user", "content": words})
    while True:
        with CLIENT.messages.stream(
            model=MODEL, max_tokens=256, system=INSTRUCTIONS, messages=HISTORY, tools=[TOOL]
        ) as stream:
            answer = stream.get_final_message()
        HISTORY.append(
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]}
        )
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": run_command(str(block.input["command"]))}
            for block in answer.content
            if block.type == "tool_use"
        ]
        if not results:
            FILE.write_text(json.dumps(HISTORY))
            text = "".join(block.text for block in answer.content if block.type == "text")
            return text, answer.usage.cache_read_input_tokens
        HISTORY.append({"role": "user", "content": results})


loop(turn)
