"""The middleware in an asynchronous agent, and without a thread. Prints the session of each answer."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

from acmserve.client import HeaderReceipt
from acmserve.client.adapters.langgraph import MARK, AcmMiddleware

URL = sys.argv[1]
RECEIPTS: list[HeaderReceipt] = []


async def main() -> None:
    """Two answers."""
    model = ChatOpenAI(model="errands", base_url=f"{URL}/v1", api_key="unused")  # type: ignore[arg-type]
    agent: Any = create_agent(model, [], middleware=[AcmMiddleware(URL, on_receipt=RECEIPTS.append)])
    said = {"messages": [{"role": "user", "content": "Hello."}]}
    named = await agent.ainvoke(said, {"configurable": {"thread_id": "thread-async"}})
    mark = named["messages"][-1].response_metadata[MARK]
    print(mark["session_id"], RECEIPTS[0].prompt_tokens == mark["receipt"]["prompt_tokens"])
    nameless = await agent.ainvoke(said)
    print(nameless["messages"][-1].response_metadata.get(MARK))


asyncio.run(main())
