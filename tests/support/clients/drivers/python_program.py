"""The frameworks for python: programs of `programs/`, each in its own virtual environment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.clients.conversation import Conversation, ProgramConversation
from tests.support.clients.installed import AGENTS_SDK, ANTHROPIC, LANGGRAPH, LITELLM, MINI, Package


@dataclass(frozen=True)
class PythonProgram:
    """An agent that a program runs."""

    name: str
    package: Package
    module: str
    arguments: tuple[str, ...] = ()
    can: frozenset[str] = frozenset({"tools", "turns", "usage"})
    overflow_steps: int = 0

    def start(self, url: str, folder: Path) -> Conversation:
        return ProgramConversation(self.package, self.module, url, folder, self.arguments)


HUNDRED_TURNS = frozenset({"tools", "turns", "usage", "budget"})
WITH_HELPER = HUNDRED_TURNS | {"sub-agent"}
MINI_SWE_AGENT = PythonProgram(
    "mini-swe-agent", MINI, "mini_agent", can=frozenset({"tools", "steps", "usage", "budget"})
)


def text_agent(**body: Any) -> PythonProgram:
    """mini-swe-agent with its configuration for text: no tools, and what a command gave comes from the user.

    `body` is added to each of its requests by its own configuration.
    """
    return PythonProgram("mini-swe-agent (text)", MINI, "mini_agent", ("mini_textbased", json.dumps(body)))


LANGGRAPH_AGENT = PythonProgram("LangGraph", LANGGRAPH, "langgraph_agent", can=HUNDRED_TURNS)
AGENTS_SDK_CHAT = PythonProgram("OpenAI Agents SDK (chat)", AGENTS_SDK, "agents_sdk_agent", ("chat",), WITH_HELPER)
AGENTS_SDK_RESPONSES = PythonProgram(
    "OpenAI Agents SDK (responses)", AGENTS_SDK, "agents_sdk_agent", ("responses",), WITH_HELPER
)
ANTHROPIC_CLIENT = PythonProgram("Anthropic's python client", ANTHROPIC, "anthropic_agent", can=HUNDRED_TURNS)
LITELLM_AGENT = PythonProgram("LiteLLM", LITELLM, "litellm_agent", can=HUNDRED_TURNS)
