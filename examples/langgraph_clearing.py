"""LangGraph's agent, whose old tool results are cleared by the server, and a second line from an earlier checkpoint.

    python examples/langgraph_clearing.py http://localhost:8000 "Which ports do these files name?" "Now the hosts."

LangGraph keeps the whole history in its checkpoints. What the model sees is cleared as Anthropic's
`clear_tool_uses_20250919` says. The thread is the session, and a run from a checkpoint is a branch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from typing import Any

import openai
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from acmserve.client import HeaderReceipt
from acmserve.client.adapters.langgraph import AcmMiddleware

KEY = os.environ.get("ACMSERVE_API_KEY", "unused")
CLEARING = {
    "edits": [
        {
            "type": "clear_tool_uses_20250919",
            "trigger": {"type": "input_tokens", "value": 1500},
            "keep": {"type": "tool_uses", "value": 2},
        }
    ]
}


@tool
def bash(command: str) -> str:
    """Run a command."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr)[:8000] or "(no output)"


def show(receipt: HeaderReceipt) -> None:
    """One line for each prompt."""
    print(f"{receipt.session_id}: {receipt.prompt_tokens} tokens, {receipt.computed_tokens} computed")


def main(url: str, first: str, second: str) -> None:
    """Ask both questions on one thread. Then go back, and branch."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        served = client.models.list().data[0].id
    model = ChatOpenAI(model=served, base_url=f"{url}/v1", api_key=KEY)  # type: ignore[arg-type]
    middleware = AcmMiddleware(url, api_key=KEY, context_management=CLEARING, on_receipt=show, fidelity="reuse")
    agent: Any = create_agent(model, [bash], middleware=[middleware], checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": f"langgraph-{uuid.uuid4().hex[:8]}"}, "recursion_limit": 200}

    def ask(words: str, config: dict[str, Any]) -> None:
        said = agent.invoke({"messages": [{"role": "user", "content": words}]}, config)
        print(said["messages"][-1].content)

    ask(first, thread)
    past = agent.get_state(thread).config
    ask(second, thread)
    print("-- back to the end of the first answer, which the session has left behind: a session of its own")
    ask(second, thread | past)
    now = agent.get_state(thread).config
    print("-- from where the thread is now: a branch")
    ask(first, thread | now)
    print("-- the thread goes on with it")
    ask(second, thread)


if __name__ == "__main__":
    main(sys.argv[1].removesuffix("/v1"), sys.argv[2], sys.argv[3])
