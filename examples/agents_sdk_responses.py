"""OpenAI's Agents SDK over the Responses API: an agent with a helper, under one session of the server.

    python examples/agents_sdk_responses.py http://localhost:8000 "Which ports do these files name?" "Now the hosts."

The SDK's own session keeps the history. The server's session keeps the edits and the KV, under the same name. The third
argument is `chat` where the SDK is to speak chat completions.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid

import openai
from agents import Agent, Runner, SQLiteSession, function_tool

from acmserve.client import AsyncSessionHandle
from acmserve.client.adapters.agents_sdk import AcmRuns

KEY = os.environ.get("ACMSERVE_API_KEY", "unused")


@function_tool
def bash(command: str) -> str:
    """Run a command."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr)[:8000] or "(no output)"


async def main(url: str, first: str, second: str, api: str = "responses") -> None:
    """Ask both questions in one session, and show what each prompt cost."""
    name = f"agents-{uuid.uuid4().hex[:8]}"
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        model = (await client.models.list()).data[0].id
    async with AsyncSessionHandle(url, name, api_key=KEY) as session:
        acm = AcmRuns(url, name, model, api="chat" if api == "chat" else "responses", api_key=KEY, fidelity="reuse")
        agent = Agent(name="worker", instructions="You are a careful assistant.", tools=[bash])
        history = SQLiteSession(name)
        for words in (first, second):
            done = await Runner.run(agent, words, session=history, run_config=acm.config, max_turns=50)
            print(done.final_output)
        for receipt in acm.receipts:
            kept, moved = receipt.kept_tokens, receipt.moved_tokens
            print(f"prompt {receipt.prompt_tokens}: kept {kept}, moved {moved}, computed {receipt.computed_tokens}")
        context = await session.context()
        print(f"the session has {len(context.messages)} messages of {context.num_tokens} tokens")
        await acm.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1].removesuffix("/v1"), *sys.argv[2:]))
