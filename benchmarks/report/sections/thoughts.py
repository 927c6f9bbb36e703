"""The section about reasoning that the template drops. It stands on the page once `bench precompute --chains` ran."""

from __future__ import annotations

from acmserve.bench.precompute.thoughts import THOUGHTS_TABLE
from acmserve.bench.report.page_section import PageSection, Reports, page_table

RESULT = "precompute-thoughts"
THOUGHTS_GROUP = "Dropped reasoning, and answers that are drafted"


def _sizes(reports: Reports) -> str:
    report = reports[RESULT]
    return f"The medians of {report['num_chains']} chains: {report['sizes']}."


THOUGHTS = (
    PageSection(
        "Dropped reasoning",
        "What does the user's next message wait for, when the template drops the reasoning of the turn before it?",
        "acmserve bench precompute --chains 5",
        "The template dropped the reasoning. The answers of `exact` are those of stock vLLM, word for word.",
        (RESULT,),
        (page_table(THOUGHTS_TABLE, RESULT),),
        (
            _sizes,
            "Under `predict` the server was idle before the user spoke, as it is while a person reads.",
            "The other ways leave no pause.",
        ),
        is_optional=True,
        group=THOUGHTS_GROUP,
        answer="The table has what each way waits for.",
    ),
)
