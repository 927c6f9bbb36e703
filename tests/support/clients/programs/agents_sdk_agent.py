"""OpenAI's Agents SDK with an SQLite session. The third argument is the route: `chat` or `responses`.

Its helper is an agent of its own, which the SDK offers as a tool.
"""

from __future__ import annotations

import sys

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from tests.support.clients.programs.line_loop import INSTRUCTIONS, MODEL, arguments, loop, run_command

URL, FILE = arguments()
set_tracing_disabled(True)


@function_tool
def bash(command: str) -> str:
    """Run a command."""
    return run_command(command)


KIND = OpenAIResponsesModel if sys.argv[3] == "responses" else OpenAIChatCompletionsModel
SERVED = KIND(model=MODEL, openai_client=AsyncOpenAI(base_url=f"{URL}/v1", api_key="unused"))
HELPER = Agent(name="helper", instructions="You help another assistant.", model=SERVED, tools=[bash])
OFFERED = [bash, HELPER.as_tool(tool_name="agent", tool_description="Ask a helper.")]
AGENT = Agent(name="worker", instructions=INSTRUCTIONS, model=SERVED, tools=list(OFFERED))
SESSION = SQLiteSession("one", str(FILE))


def turn(words: str) -> tuple[str, int | None]:
    done = Runner.run_sync(AGENT, words, session=SESSION, max_turns=500)
    return str(done.final_output), done.raw_responses[-1].usage.input_tokens_details.cached_tokens


loop(turn)
