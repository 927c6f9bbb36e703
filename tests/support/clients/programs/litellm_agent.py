"""An agent on LiteLLM: chat completions, not streamed, one tool, the history in a file."""

from __future__ import annotations

import json
from typing import Any

import litellm

from tests.support.clients.programs.line_loop import INSTRUCTIONS, MODEL, arguments, loop, run_command

URL, FILE = arguments()
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
HISTORY: list[Any] = json.loads(FILE.read_text()) if FILE.exists() else [{"role": "system", "content": INSTRUCTIONS}]


def turn(words: str) -> tuple[str, int | None]:
    HISTORY.append({"role": "user", "content": words})
    while True:
        answer: Any = litellm.completion(
            model=f"openai/{MODEL}", api_base=f"{URL}/v1", api_key="unused", messages=HISTORY, tools=[TOOL]
        )
        message = answer.choices[0].message
        HISTORY.append(message.model_dump())
        if not message.tool_calls:
            FILE.write_text(json.dumps(HISTORY))
            details = answer.usage.prompt_tokens_details
            return message.content or "", None if details is None else details.cached_tokens
        for call in message.tool_calls:
            result = run_command(json.loads(call.function.arguments)["command"])
            HISTORY.append({"role": "tool", "tool_call_id": call.id, "content": result})


loop(turn)
