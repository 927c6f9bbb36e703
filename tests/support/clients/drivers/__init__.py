"""Every client of the matrix, one file a client."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.clients.conversation import AgentClient
from tests.support.clients.drivers.aider import Aider
from tests.support.clients.drivers.claude_code import ClaudeCode
from tests.support.clients.drivers.codex import Codex
from tests.support.clients.drivers.opencode import Opencode
from tests.support.clients.drivers.python_program import (
    AGENTS_SDK_CHAT,
    AGENTS_SDK_RESPONSES,
    ANTHROPIC_CLIENT,
    LANGGRAPH_AGENT,
    LITELLM_AGENT,
    MINI_SWE_AGENT,
)
from tests.support.clients.drivers.qwen_code import QwenCode

EVERY_CLIENT: Sequence[AgentClient] = (
    MINI_SWE_AGENT,
    ANTHROPIC_CLIENT,
    LITELLM_AGENT,
    AGENTS_SDK_CHAT,
    AGENTS_SDK_RESPONSES,
    LANGGRAPH_AGENT,
    Opencode(),
    QwenCode(),
    ClaudeCode(),
    Codex(),
    Aider(),
)
