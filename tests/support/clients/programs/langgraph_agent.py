"""LangGraph's own agent on langchain-openai, with its checkpoints in a file of SQLite."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver

from tests.support.clients.programs.line_loop import INSTRUCTIONS, MODEL, arguments, loop, run_command

URL, FILE = arguments()


@tool
def bash(command: str) -> str:
    """Run a command."""
    return run_command(command)


with SqliteSaver.from_conn_string(str(FILE)) as SAVER:
    MODEL_OF_SERVER = ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key="unused")  # type: ignore[arg-type]
    AGENT: Any = create_agent(MODEL_OF_SERVER, [bash], system_prompt=INSTRUCTIONS, checkpointer=SAVER)

    def turn(words: str) -> tuple[str, int | None]:
        given = {"messages": [{"role": "user", "content": words}]}
        found = AGENT.invoke(given, {"configurable": {"thread_id": "one"}, "recursion_limit": 500})
        last = found["messages"][-1]
        details = (last.usage_metadata or {}).get("input_token_details") or {}
        return str(last.content), details.get("cache_read")

    loop(turn)
