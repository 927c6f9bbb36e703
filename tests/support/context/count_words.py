"""A context tool as somebody would write it: one file with schema, function and words."""

from __future__ import annotations

from acmserve.context.edits.find import texts_of
from acmserve.context.schema.tool_schema import choice, tool_schema
from acmserve.context.session.state import SessionState
from acmserve.context.tools.tool import Arguments, Tool, ToolContext, ToolOutcome, counted

_SCHEMA = tool_schema(
    "count_words",
    "Count the words of the conversation.",
    {"role": choice(("user", "assistant", "all"), "user", "Whose words to count")},
    [],
)


def _run(state: SessionState, args: Arguments, _: ToolContext) -> ToolOutcome:
    total = sum(len(text.split()) for *_, text in texts_of(state, args["role"]))
    return ToolOutcome(state, f"{counted(total, 'word')} of role {args['role']}.")


COUNT_WORDS = Tool("count_words", _SCHEMA, _run, "counts words")
