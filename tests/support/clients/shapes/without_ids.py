"""Clients that name no session: Qwen Code, mini-swe-agent and aider, by chat completions."""

from __future__ import annotations

import json

from tests.support.clients.shapes.shape import ASKED, ASKED_AGAIN, RESULT, RULES, Json, Shape, called_by_chat, function
from tests.support.server.scripted_server import MODEL


def qwen_code(session: str) -> list[Shape]:
    """No id anywhere. A resume takes the white space off answers, a compaction has another system prompt."""
    tools = [{"type": "function", "function": function("run_shell_command", command="string")}]
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
    called = [*greeted, *called_by_chat("run_shell_command", result, content=None)]
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
    tools = [{"type": "function", "function": function("bash", command="string")}]
    opening = [{"role": "system", "content": RULES}, {"role": "user", "content": f"Solve this: {ASKED} ({session})"}]
    result = json.dumps({"returncode": 0, "output": RESULT})
    called = [*opening, *called_by_chat("bash", result, provider_specific_fields={"reasoning": None})]
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
