"""The tool `restore_context`: shows everything again and forgets the fragments."""

from __future__ import annotations

from acmserve.context.edits.fragments import restore_all
from acmserve.context.schema.tool_schema import tool_schema
from acmserve.context.session.state import SessionState
from acmserve.context.tools.tool import Arguments, Tool, ToolContext, ToolOutcome, counted

_SCHEMA = tool_schema("restore_context", "Show everything again and forget all fragments.", {}, [])


def _run(state: SessionState, _: Arguments, __: ToolContext) -> ToolOutcome:
    new = restore_all(state)
    gone = tuple(f for f in state.fragments if f not in new.fragments)
    hidden = tuple(f.fragment_id for f in gone if f.hidden)
    if not gone:
        return ToolOutcome(new, "There are no fragments; nothing was hidden.")
    shown = f"{', '.join(hidden)} visible again" if hidden else "nothing was hidden"
    result = f"Forgot {counted(len(gone), 'fragment')}, the old ids are void; {shown}."
    return ToolOutcome(new, result, changed=bool(hidden), fragment_ids=hidden)


RESTORE_CONTEXT = Tool(
    "restore_all",
    _SCHEMA,
    _run,
    "shows everything again and forgets the fragments",
    "what stands behind the first hidden fragment",
)
