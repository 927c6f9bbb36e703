"""Codex, by responses."""

from __future__ import annotations

import json

from tests.support.clients.shapes.shape import ASKED, ASKED_AGAIN, RESULT, RULES, Json, Shape, function
from tests.support.server.scripted_server import MODEL

PATH = "/v1/responses"
TOOLS: list[Json] = [
    {"type": "function", "strict": False, **function("exec_command", cmd="string")},
    {
        "type": "namespace",
        "name": "agents",
        "description": "Helpers.",
        "tools": [{"type": "function", **function("spawn_agent", message="string")}],
    },
    {"type": "web_search", "external_web_access": False},
]
FIELDS: Json = {
    "model": MODEL,
    "stream": True,
    "tools": TOOLS,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
}


def codex(session: str) -> list[Shape]:
    """Ids in headers and body. A helper shares all of them but the thread's. A compaction offers no tools."""
    opening = [
        _message(1, "developer", RULES),
        _message(2, "user", "<environment>It is Tuesday.</environment>"),
        _message(3, "user", ASKED),
    ]
    call = {"type": "function_call", "status": "completed", "id": "fc_1", "call_id": "call_1", "name": "exec_command"}
    output = {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": RESULT}
    called = [*opening, call | {"arguments": json.dumps({"cmd": "cat boats.txt"})}, output]
    resumed = [*called, _noted(4), _message(5, "user", ASKED_AGAIN)]
    summed = [*resumed, _noted(6), _message(7, "user", "Sum this up.")]
    turn, headers = _body(session, session), _headers(session, session, "turn")
    helper = _body(session, f"{session}-2") | {"tools": TOOLS[:1]}
    helper |= {"input": [*opening[:2], _message(8, "user", "Count the boats.")]}
    of_helper = _headers(session, f"{session}-2", "turn") | {"x-openai-subagent": "collab_spawn"}
    of_helper |= {"x-codex-parent-thread-id": session}
    bare = turn | {"tools": [], "parallel_tool_calls": False, "input": summed}
    return [
        Shape("open", PATH, turn | {"input": opening}, headers),
        Shape("called", PATH, turn | {"input": called}, headers),
        Shape("sub-agent", PATH, helper, of_helper, side=True),
        Shape("resumed", PATH, turn | {"input": resumed}, headers),
        Shape("compaction", PATH, bare, _headers(session, session, "compaction"), side=True),
    ]


def _body(session: str, thread: str) -> Json:
    return FIELDS | {"prompt_cache_key": session, "client_metadata": {"session_id": session, "thread_id": thread}}


def _headers(session: str, thread: str, kind: str) -> dict[str, str]:
    source = "user" if thread == session else "subagent"
    told = {"session_id": session, "thread_id": thread, "request_kind": kind, "thread_source": source}
    return {
        "session-id": session,
        "thread-id": thread,
        "x-client-request-id": thread,
        "x-codex-window-id": f"{thread}:0",
        "x-codex-turn-metadata": json.dumps(told),
        "originator": "codex_exec",
    }


def _message(number: int, role: str, words: str) -> Json:
    content = [{"type": "input_text", "text": words}]
    return {"type": "message", "id": f"msg_{number}", "role": role, "content": content}


def _noted(number: int) -> Json:
    content = [{"type": "output_text", "text": "Noted.", "annotations": []}]
    return {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": content}
