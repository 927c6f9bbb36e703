"""Claude Code, by messages."""

from __future__ import annotations

import json
from typing import Any

from tests.support.clients.shapes.shape import ASKED, ASKED_AGAIN, COMMAND, RESULT, RULES, Json, Shape
from tests.support.server.scripted_server import MODEL

PATH = "/v1/messages?beta=true"
TOOLS = [
    {"name": name, "description": "Run it.", "input_schema": {"type": "object", "properties": {}}}
    for name in ("Agent", "Bash")
]


def claude_code(session: str) -> list[Shape]:
    """The id in a header and in the metadata. A helper shares it. At a resume the system's last lines are new."""
    ids = {"x-claude-code-session-id": session, "x-api-key": "unused", "anthropic-version": "2023-06-01"}
    beta = {"anthropic-beta": "context-management-2025-06-27,interleaved-thinking-2025-05-14"}
    common: Json = {
        "model": MODEL,
        "max_tokens": 64,
        "metadata": {"user_id": json.dumps({"device_id": "d" * 64, "account_uuid": "", "session_id": session})},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    }
    opening: list[Json] = [
        {"role": "user", "content": [_text("<reminder>It is Tuesday.</reminder>"), _text(ASKED)]},
        {"role": "system", "content": "Helpers: one for boats, one for mills."},
    ]
    called = [
        *opening,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": COMMAND}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": RESULT, "is_error": False}],
        },
    ]
    noted = {"role": "assistant", "content": [_text("Noted.")]}
    resumed = [*called, noted, {"role": "user", "content": ASKED_AGAIN}]
    held_text = _text(ASKED_AGAIN, cache_control={"type": "ephemeral"})
    compacting = [*called, noted, {"role": "user", "content": [held_text, _text("Sum up all of this.")]}]
    clean, changed = (
        common | {"system": _system("Status: clean")},
        common | {"system": _system("Status: boats.txt changed")},
    )
    helper = common | {
        "system": [_text("You help an agent.")],
        "messages": [{"role": "user", "content": "Count the boats."}],
    }
    return [
        Shape("open", PATH, clean | {"tools": TOOLS, "messages": opening}, ids | beta),
        Shape("called", PATH, clean | {"tools": TOOLS, "messages": called}, ids | beta),
        Shape(
            "sub-agent", PATH, helper | {"tools": TOOLS[1:]}, ids | beta | {"x-claude-code-agent-id": "a1"}, side=True
        ),
        Shape("resumed", PATH, changed | {"tools": TOOLS, "messages": resumed}, ids | beta),
        Shape("compaction", PATH, changed | {"tools": TOOLS, "messages": compacting}, ids | beta),
    ]


def _system(status: str) -> list[Json]:
    held = {"cache_control": {"type": "ephemeral"}}
    return [_text("You are an agent.", **held), _text(f"{RULES}\n{status}", **held)]


def _text(words: str, **more: Any) -> Json:
    return {"type": "text", "text": words, **more}
