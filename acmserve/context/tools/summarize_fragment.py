"""The tools `summarize_fragment` and `summary_fragment` (its name in version 1): a summary stands for a fragment.

The summary is written by a model that the caller asks. One that was written before, for the same focus, is used again.
"""

from __future__ import annotations

from acmserve.context.edits.fragments import check_summarizable, summarize
from acmserve.context.schema.tool_schema import Schema, text, tool_schema
from acmserve.context.session.render import readable_text
from acmserve.context.session.state import SessionState
from acmserve.context.tools.fold_fragment import hidden
from acmserve.context.tools.tool import FRAGMENT_ID, Arguments, SummaryWanted, Tool, ToolContext, ToolOutcome


def _schema(name: str) -> Schema:
    return tool_schema(
        name,
        "Replace a fragment by a summary with a focus. The original is kept and can be restored at any time.",
        {
            "fragment_id": FRAGMENT_ID,
            "focus": text(
                "What the summary is to keep (for instance 'technical details', 'key decisions', 'action items', "
                "'main points', 'problems', 'solutions')"
            ),
        },
        ["fragment_id", "focus"],
    )


def _run(state: SessionState, args: Arguments, context: ToolContext) -> ToolOutcome:
    focus = args["focus"]
    fragment = check_summarizable(state, args["fragment_id"], focus)
    fragment_id = fragment.fragment_id
    stored = fragment.summary(focus)
    summary = stored if stored is not None else context.supplied
    if summary is None:
        wanted = SummaryWanted(fragment_id, readable_text(state, fragment), focus, fragment.num_tokens)
        return ToolOutcome(state, needs=wanted)
    if not isinstance(summary, str):
        raise TypeError(f"summarize_fragment was supplied with {type(summary).__name__}, not a summary")
    new = summarize(state, fragment_id, focus, summary, context.suite, context.tokenizer)
    return hidden(state, new, args, context)


_DOES = "shows a summary instead, written by a model for a focus and kept"
SUMMARIZE_FRAGMENT = Tool("summarize", _schema("summarize_fragment"), _run, _DOES, "what stands behind the fragment")
SUMMARY_FRAGMENT = Tool("summarize", _schema("summary_fragment"), _run, _DOES, "what stands behind the fragment")
