"""opencode, by chat completions."""

from __future__ import annotations

from tests.support.clients.shapes.shape import ASKED, ASKED_AGAIN, RESULT, RULES, Shape, called_by_chat, function
from tests.support.server.scripted_server import MODEL


def opencode(session: str) -> list[Shape]:
    """Ids in headers. The title comes first, without tools and with the same id."""
    ids = {"x-session-id": session, "x-session-affinity": session, "authorization": "Bearer unused"}
    common = {"model": MODEL, "max_tokens": 64, "stream": True, "stream_options": {"include_usage": True}}
    tools = [{"type": "function", "function": function("bash", command="string")}]
    main = common | {"tools": tools, "tool_choice": "auto"}
    opening = [{"role": "system", "content": RULES}, {"role": "user", "content": f'"{ASKED}"'}]
    called = [*opening, *called_by_chat("bash", RESULT, content="")]
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
