"""How each client speaks, in our own words: fields, headers and order of its requests, as `make clients` recorded them.

    open      the first turn          called    the same with a call and its result
    resumed   a second turn, in the spelling of a new process
    side      a title, a sub-agent or a compaction beside the conversation, where the client sends one

So that the suite covers each way of speaking without installing a client. Names of clients' tools and headers are
theirs, for they are the protocol. Every text is ours. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.server.scripted_server import MODEL

RULES = "You mend boats. Read before you write. " * 12
RESULT = "The mill stands by the river, and seven boats lie at its pier. " * 6
COMMAND = {"command": "cat boats.txt"}
ASKED, ASKED_AGAIN = "How many boats are there?", "And how many mills?"
Json = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """One request. `side` is false for those of the main conversation."""

    name: str
    path: str
    body: Json
    headers: Mapping[str, str] = field(default_factory=dict)
    side: bool = False


def _function(name: str, **properties: str) -> Json:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"name": name, "description": "Run a command.", "parameters": schema | {"required": list(properties)}}


def _chat_turns(name: str, result: Any, **assistant: Any) -> list[Json]:
    call = {"id": "call-1", "type": "function", "function": {"name": name, "arguments": json.dumps(COMMAND)}}
    return [
        {"role": "assistant", **assistant, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": result},
    ]


def opencode(session: str) -> list[Shape]:
    """Ids in headers. The title comes first, without tools and with the same id."""
    ids = {"x-session-id": session, "x-session-affinity": session, "authorization": "Bearer unused"}
    common = {"model": MODEL, "max_tokens": 64, "stream": True, "stream_options": {"include_usage": True}}
    tools = [{"type": "function", "function": _function("bash", command="string")}]
    main = common | {"tools": tools, "tool_choice": "auto"}
    opening = [{"role": "system", "content": RULES}, {"role": "user", "content": f'"{ASKED}"'}]
    called = [*opening, *_chat_turns("bash", RESULT, content="")]
    resumed = [*called, {"role": "assistant", "content": "Noted."}, {"role": "user", "content": ASKED_AGAIN}]
    title = [
        {"role": "system", "content": "Name conversations in five words."},
        {"role": "user", "content": "Name this one:"},
        {"role": "user", "content": f'"{ASKED}"'},
    ]
    flat = [
        {"role": "system", "content": "Sum up conversations."},
        {"role": "user", "content": f"[User]: {ASKED}\n\n[Tool result]: {RESULT}\n\nSum this up."},
    ]
    helper = [{"role": "system", "content": RULES}, {"role": "user", "content": "Count the boats."}]
    of_helper = ids | {
        "x-session-id": f"{session}-2",
        "x-session-affinity": f"{session}-2",
        "x-parent-session-id": session,
    }
    path = "/v1/chat/completions"
    return [
        Shape("title", path, common | {"messages": title}, ids, side=True),
        Shape("open", path, main | {"messages": opening}, ids),
        Shape("called", path, main | {"messages": called}, ids),
        Shape("sub-agent", path, main | {"messages": helper}, of_helper, side=True),
        Shape("resumed", path, main | {"messages": resumed}, ids),
        Shape("compaction", path, common | {"messages": flat}, ids, side=True),
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
    tools = [
        {"name": name, "description": "Run it.", "input_schema": {"type": "object", "properties": {}}}
        for name in ("Agent", "Bash")
    ]

    def system(status: str) -> list[Json]:
        held = {"cache_control": {"type": "ephemeral"}}
        return [
            {"type": "text", "text": "You are an agent."} | held,
            {"type": "text", "text": f"{RULES}\n{status}"} | held,
        ]

    def text(words: str, **more: Any) -> Json:
        return {"type": "text", "text": words, **more}

    opening: list[Json] = [
        {"role": "user", "content": [text("<reminder>It is Tuesday.</reminder>"), text(ASKED)]},
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
    noted = {"role": "assistant", "content": [text("Noted.")]}
    resumed = [*called, noted, {"role": "user", "content": ASKED_AGAIN}]
    held_text = text(ASKED_AGAIN, cache_control={"type": "ephemeral"})
    compacting = [*called, noted, {"role": "user", "content": [held_text, text("Sum up all of this.")]}]
    path = "/v1/messages?beta=true"
    clean, changed = (
        common | {"system": system("Status: clean")},
        common | {"system": system("Status: boats.txt changed")},
    )
    helper = common | {
        "system": [text("You help an agent.")],
        "messages": [{"role": "user", "content": "Count the boats."}],
    }
    return [
        Shape("open", path, clean | {"tools": tools, "messages": opening}, ids | beta),
        Shape("called", path, clean | {"tools": tools, "messages": called}, ids | beta),
        Shape(
            "sub-agent", path, helper | {"tools": tools[1:]}, ids | beta | {"x-claude-code-agent-id": "a1"}, side=True
        ),
        Shape("resumed", path, changed | {"tools": tools, "messages": resumed}, ids | beta),
        Shape("compaction", path, changed | {"tools": tools, "messages": compacting}, ids | beta),
    ]


def codex(session: str) -> list[Shape]:
    """Ids in headers and body. A helper shares all of them but the thread's. A compaction offers no tools."""

    def speak(thread: str, kind: str, window: int, source: str = "user") -> tuple[Json, dict[str, str]]:
        told = json.dumps({"session_id": session, "thread_id": thread, "request_kind": kind, "thread_source": source})
        headers = {
            "session-id": session,
            "thread-id": thread,
            "x-client-request-id": thread,
            "originator": "codex_exec",
        }
        headers |= {"x-codex-window-id": f"{thread}:{window}", "x-codex-turn-metadata": told}
        if source == "subagent":
            headers |= {"x-openai-subagent": "collab_spawn", "x-codex-parent-thread-id": session}
        body: Json = {
            "model": MODEL,
            "stream": True,
            "tools": tools,
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"summary": "auto"},
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": session,
            "client_metadata": {"session_id": session, "thread_id": thread, "x-codex-turn-metadata": told},
        }
        return body, headers

    tools: list[Json] = [{"type": "function", "strict": False, **_function("exec_command", cmd="string")}]
    helpers = {"type": "function", **_function("spawn_agent", message="string")}
    tools.append({"type": "namespace", "name": "agents", "description": "Helpers.", "tools": [helpers]})
    tools.append({"type": "web_search", "external_web_access": False})

    def message(number: int, role: str, words: str) -> Json:
        return {
            "type": "message",
            "id": f"msg_{number}",
            "role": role,
            "content": [{"type": "input_text", "text": words}],
        }

    opening = [
        message(1, "developer", RULES),
        message(2, "user", "<environment>It is Tuesday.</environment>"),
        message(3, "user", ASKED),
    ]
    call = {"type": "function_call", "status": "completed", "id": "fc_1", "call_id": "call_1", "name": "exec_command"}
    output = {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": RESULT}
    called = [*opening, call | {"arguments": json.dumps({"cmd": "cat boats.txt"})}, output]
    noted = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Noted.", "annotations": []}],
    }
    noted |= {"id": "msg_4", "status": "completed"}
    resumed = [*called, noted, message(5, "user", ASKED_AGAIN)]
    (turn, headers), (of_helper, helper_headers) = (
        speak(session, "turn", 0),
        speak(f"{session}-2", "turn", 0, "subagent"),
    )
    compaction, compaction_headers = speak(session, "compaction", 0)
    bare = {"tools": [], "parallel_tool_calls": False, "input": [*resumed, noted, message(6, "user", "Sum this up.")]}
    path = "/v1/responses"
    return [
        Shape("open", path, turn | {"input": opening}, headers),
        Shape("called", path, turn | {"input": called}, headers),
        Shape(
            "sub-agent",
            path,
            of_helper | {"tools": tools[:1], "input": [*opening[:2], message(9, "user", "Count.")]},
            helper_headers,
            side=True,
        ),
        Shape("resumed", path, turn | {"input": resumed}, headers),
        Shape("compaction", path, compaction | bare, compaction_headers, side=True),
    ]


def qwen_code(session: str) -> list[Shape]:
    """No id anywhere. A resume takes the white space off answers, a compaction has another system prompt."""
    tools = [{"type": "function", "function": _function("run_shell_command", command="string")}]
    common: Json = {"model": MODEL, "max_tokens": 64}
    main = common | {"stream": True, "stream_options": {"include_usage": True}, "tools": tools}

    def user(words: str) -> Json:
        return {"role": "user", "content": [{"type": "text", "text": words}]}

    greeted = [
        user(f"It is Tuesday in {session}."),
        {"role": "assistant", "content": "Thanks for telling."},
        user(ASKED),
    ]
    result = [{"type": "text", "text": RESULT}]
    rules = {"role": "system", "content": RULES}
    called = [*greeted, *_chat_turns("run_shell_command", result, content=None)]
    resumed = [*called, {"role": "assistant", "content": "Noted."}, user(ASKED_AGAIN)]
    summing = [{"role": "system", "content": "Sum up conversations."}, *called, user("Sum this up.")]
    path = "/v1/chat/completions"
    return [
        Shape("open", path, main | {"messages": [rules, *greeted]}),
        Shape("called", path, main | {"messages": [rules, *called]}),
        Shape("resumed", path, main | {"messages": [rules, *resumed]}),
        Shape("compaction", path, common | {"messages": summing}, side=True),
    ]


def mini_swe_agent(session: str) -> list[Shape]:
    """No id, no stream, no limit. The answer comes back with LiteLLM's own field, and without `content`."""
    tools = [{"type": "function", "function": _function("bash", command="string")}]
    opening = [{"role": "system", "content": RULES}, {"role": "user", "content": f"Solve this: {ASKED} ({session})"}]
    result = json.dumps({"returncode": 0, "output": RESULT})
    called = [*opening, *_chat_turns("bash", result, provider_specific_fields={"reasoning": None})]
    path = "/v1/chat/completions"
    return [
        Shape("open", path, {"model": MODEL, "tools": tools, "messages": opening}),
        Shape("called", path, {"model": MODEL, "tools": tools, "messages": called}),
    ]


def aider(session: str) -> list[Shape]:
    """No id, no tools, no usage. The block of files stands behind the history, and a reminder on the last words."""
    files = [
        {"role": "user", "content": f"These are my files.\n{RESULT}"},
        {"role": "assistant", "content": "I see them."},
    ]
    common: Json = {"model": MODEL, "stream": True, "temperature": 0}
    rules = {"role": "system", "content": f"{RULES} ({session})"}
    before = [{"role": "user", "content": f"{ASKED}  \n"}, {"role": "assistant", "content": "\nNoted.\n\n"}]
    path = "/v1/chat/completions"
    return [
        Shape("open", path, common | {"messages": [rules, *files, {"role": "user", "content": f"{ASKED}\n\n{RULES}"}]}),
        Shape(
            "resumed",
            path,
            common | {"messages": [rules, *before, *files, {"role": "user", "content": f"{ASKED_AGAIN}\n\n{RULES}"}]},
        ),
    ]


SPEAKERS: Mapping[str, Callable[[str], Sequence[Shape]]] = {
    "opencode": opencode,
    "Claude Code": claude_code,
    "Codex": codex,
    "Qwen Code": qwen_code,
    "mini-swe-agent": mini_swe_agent,
    "aider": aider,
}
WITH_IDS = ("opencode", "Claude Code", "Codex")
"""Those that name their session in a way of their own."""
