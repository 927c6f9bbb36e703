"""The section about reasoning that the template drops. It stands on the page once `bench precompute --thoughts` ran."""

from __future__ import annotations

from collections.abc import Iterator

from acmserve.bench.report.markdown_text import count, milliseconds, ratio
from acmserve.bench.report.page_section import PageSection, PageTable, Reports

RESULT = "precompute-thoughts"
_WAYS = {
    "exact, predict": "`exact`, precompute `predict`",
    "exact": "`exact`",
    "auto": "`auto`",
    "reuse": "`reuse`",
    "stock": "stock vLLM",
}


def _ways(reports: Reports) -> Iterator[list[str]]:
    for way in reports[RESULT]["ways"]:
        times = [milliseconds(way[name]) for name in ("median_seconds", "median_append_seconds")]
        tokens = [count(way["median_tokens"].get(f"{part}_tokens")) for part in ("moved", "computed")]
        yield [_WAYS[way["name"]], *times, ratio(way["appends"]), *tokens]


def _sizes(reports: Reports) -> str:
    report = reports[RESULT]
    return f"The medians of {report['num_chains']} chains: {report['sizes']}."


THOUGHTS = (
    PageSection(
        "Dropped reasoning",
        "What does the user's next message wait for, when the template drops the reasoning of the turn before it?",
        "acmserve bench precompute --thoughts 3",
        "The template dropped the reasoning. The answers of `exact` are those of stock vLLM, word for word.",
        (RESULT,),
        (PageTable(("way", "first token", "an append behind it", "in appends", "moved", "computed"), _ways),),
        (
            _sizes,
            "Under `predict` the server was idle before the user spoke, as it is while a person reads.",
            "The other ways leave no pause.",
        ),
        is_optional=True,
    ),
)
