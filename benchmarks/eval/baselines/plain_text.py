"""A sample as one text and a query about it, for what takes no conversation. Pure.

    a text and a question           the text                              the question
    a conversation                  its messages, each behind its role    the question
    one text that asks for itself   the text                              its first and last 500 tokens

The Sculptor paper (appendix C.4) gives its baselines all tasks in this way, and has the pseudo query of the last line.
"""

from __future__ import annotations

from dataclasses import dataclass

from acmserve.bench.eval.tasks.task import CHARS_PER_TOKEN, EvalSample

QUERY_TOKENS = 500
"""Of each end of a text that has no question beside it."""


@dataclass(frozen=True, slots=True)
class PlainText:
    """`query` is what is asked about the text, and what is looked for in it."""

    text: str
    query: str


def plain_text(sample: EvalSample) -> PlainText:
    """The sample without its form. What asks for itself is also its own text."""
    told = [f"{str(one['role']).capitalize()}: {one['content']}" for one in sample.history]
    told += [sample.context] if sample.context else []
    if told:
        return PlainText("\n\n".join(told), sample.question)
    return PlainText(sample.question, pseudo_query(sample.question))


def pseudo_query(text: str) -> str:
    """The first and the last tokens of a text, as many as characters tell."""
    size = QUERY_TOKENS * CHARS_PER_TOKEN
    return text if len(text) <= 2 * size else f"{text[:size]}\n{text[-size:]}"
