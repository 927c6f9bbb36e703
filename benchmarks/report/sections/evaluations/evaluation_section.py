"""A section about right answers, of one result of `acmserve eval`: what all of them have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.eval.summary import GROUPED_TASKS
from acmserve.bench.eval.table import WAY_TABLE
from acmserve.bench.eval.task_evidence import alike_ways, shown_by_task
from acmserve.bench.harness.markdown_text import listed
from acmserve.bench.report.page_section import PageSection, Reports, page_table

GROUP = "Evaluation of a model that was trained, and of an agent that runs code"
Note = str | Callable[[Report], str]
"""What a section says beside its tables: a text, or what makes one of its report."""


def evaluation_section(
    name: str,
    title: str,
    question: str,
    command: str,
    answer: Callable[[Report], str],
    notes: Sequence[Note],
    tables: Sequence[ResultTable] = (WAY_TABLE,),
    group: str = GROUP,
) -> PageSection:
    """The section of one result. Its answer and its notes are told of that report."""

    def of_result(told: Callable[[Report], str]) -> Callable[[Reports], str]:
        return lambda reports: told(reports[name])

    return PageSection(
        title,
        question,
        command,
        "No request was refused.",
        (name,),
        tuple(page_table(table, name) for table in tables),
        tuple(note if isinstance(note, str) else of_result(note) for note in notes),
        is_optional=True,
        answer=of_result(answer),
        group=group,
    )


def played_told(report: Report) -> str:
    """How much of what was planned the result has."""
    played, planned = report["num_played"], report["num_planned"]
    if played == planned:
        return f"All {planned:,} samples in ways were played."
    return f"Time was up behind {played:,} of {planned:,} samples in ways, one more context for each setting at a time."


def alike_told(report: Report) -> str:
    """Ways that nothing tells apart in this result. "" where there are none."""
    groups = [[f"`{way}`" for way in ways] for ways in alike_ways(report["rows"])]
    told = [listed(ways) for ways in groups]
    return " ".join(f"{ways} came to the same tokens and scores in every task." for ways in told)


def contexts_told(report: Report) -> str:
    """What an interval is over. Older reports count each question as a case of its own."""
    if all("num_contexts" in row for row in report["rows"]):
        return "Intervals are over contexts: questions about one context count as one observation."
    tasks = ", ".join(f"`{task}`" for task in shown_by_task(report["rows"]) if task in GROUPED_TASKS)
    return (
        "Intervals of this result take questions about one context as independent"
        f"{f', so those of {tasks} are too narrow' if tasks else ''}."
    )
