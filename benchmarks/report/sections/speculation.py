"""The section about drafted answers. It stands on the page once `bench speculation` ran."""

from __future__ import annotations

from acmserve.bench.harness.markdown_text import ratio
from acmserve.bench.report.page_section import PageSection, Reports, page_table
from acmserve.bench.report.sections.thoughts import THOUGHTS_GROUP
from acmserve.bench.speculation.table import ANSWERS_TABLE, BARS_TABLE, DRAFTS_TABLE

RESULT = "speculation"


def _answer(reports: Reports) -> str:
    ordinary, superseded = reports[RESULT]["kinds"]
    one, other = (ratio(kind["over_exact"]["median"]) for kind in (ordinary, superseded))
    return (
        f"On ordinary text a drafted answer takes {one} times as long as one without a draft. "
        f"Where moved KV is wrong, it takes {other} times as long."
    )


def _control(reports: Reports) -> str:
    ordinary = reports[RESULT]["kinds"][0]
    return f"Without a draft an answer takes {ratio(ordinary['exact_over_sum']['median'])} times the sum of both parts."


SPECULATION = (
    PageSection(
        "Drafted answers",
        "How long does an exact answer of 200 tokens take behind a fold at 5,500 tokens, when it is drafted meanwhile?",
        "acmserve bench speculation",
        "Every answer has the tokens of `exact`, and `exact` moved nothing.",
        (RESULT,),
        (page_table(BARS_TABLE, RESULT), page_table(ANSWERS_TABLE, RESULT), page_table(DRAFTS_TABLE, RESULT)),
        (
            _control,
            "Prefill alone is the same prompt with one token. Decode alone has its prompt in the cache.",
        ),
        is_optional=True,
        group=THOUGHTS_GROUP,
        answer=_answer,
    ),
)
