"""The sections about reasoning that the template drops, and about drafted answers.

They stand on the page once `bench precompute --chains`, `bench speculation` and `bench speculation-tokens` ran.
"""

from __future__ import annotations

from acmserve.bench.harness.markdown_text import ratio
from acmserve.bench.precompute.thoughts import THOUGHTS_TABLE
from acmserve.bench.report.page_section import PageSection, Reports, page_table
from acmserve.bench.speculation.table import ANSWERS_TABLE, BARS_TABLE, DRAFTS_TABLE, told_of_whole_drafts
from acmserve.bench.speculation.verdict import (
    KINDS_TABLE,
    LEAST_ACCEPTED_TOKENS,
    LEAST_COMPARED,
    REASONS_TABLE,
    WAYS_TABLE,
    told_tokens,
    too_few_compared,
)

RESULT, DRAFTED_RESULT, TOKENS_RESULT = "precompute-thoughts", "speculation", "speculation-tokens"
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


def _answer(reports: Reports) -> str:
    ordinary, superseded = reports[DRAFTED_RESULT]["kinds"]
    one, other = (ratio(kind["over_exact"]["median"]) for kind in (ordinary, superseded))
    return (
        f"On ordinary text a drafted answer takes {one} times as long as one without a draft. "
        f"Over superseded lines it takes {other} times as long."
    )


def _control(reports: Reports) -> str:
    ordinary = reports[DRAFTED_RESULT]["kinds"][0]
    return f"Without a draft an answer takes {ratio(ordinary['exact_over_sum']['median'])} times the sum of both parts."


def _tokens(reports: Reports) -> str:
    report = reports[TOKENS_RESULT]
    return " ".join(filter(None, (told_tokens(report), too_few_compared(report))))


SPECULATION = (
    PageSection(
        "Drafted answers",
        "How long does an exact answer of 200 tokens take behind a fold at 5,500 tokens, when it is drafted meanwhile?",
        "acmserve bench speculation",
        "Every answer has the tokens of `exact`, and `exact` moved nothing.",
        (DRAFTED_RESULT,),
        (
            page_table(BARS_TABLE, DRAFTED_RESULT),
            page_table(ANSWERS_TABLE, DRAFTED_RESULT),
            page_table(DRAFTS_TABLE, DRAFTED_RESULT),
        ),
        (
            _control,
            lambda reports: told_of_whole_drafts(reports[DRAFTED_RESULT]),
            "Prefill alone is the same prompt with one token. Decode alone has its prompt in the cache.",
        ),
        is_optional=True,
        group=THOUGHTS_GROUP,
        answer=_answer,
    ),
    PageSection(
        "Tokens of drafted answers",
        "Are the tokens of drafted and verified answers those of `exact`?",
        "acmserve bench speculation-tokens",
        "No token of a drafted answer is another one than under `exact`, and as many as were asked for are compared.",
        (TOKENS_RESULT,),
        tuple(page_table(one, TOKENS_RESULT) for one in (WAYS_TABLE, KINDS_TABLE, REASONS_TABLE)),
        (
            lambda reports: f"Answers have {reports[TOKENS_RESULT]['sizes']['answer_tokens']} tokens each, all greedy.",
            f"The bar is {LEAST_COMPARED:,} tokens, of which {LEAST_ACCEPTED_TOKENS:,} are accepted drafts.",
            "Answers without a verified draft are compared, too, and their tokens do not count.",
            "In each conversation one document after the other is folded, twice in all.",
        ),
        is_optional=True,
        group=THOUGHTS_GROUP,
        answer=_tokens,
    ),
)
