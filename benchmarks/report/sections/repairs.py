"""The section about repaired caches and questions that the repair did not see."""

from __future__ import annotations

from collections.abc import Iterator

from acmserve.bench.agent.result_table import Report
from acmserve.bench.harness.markdown_text import interval, points, share
from acmserve.bench.repairs.cases import PRECISE
from acmserve.bench.report.page_section import PageSection, PageTable, Reports

_FILE = "repairs"
_WAYS = {"reuse": "`reuse`", "auto": "`auto`", "question's words": "control: words of the question"}
_FAMILIES = {"pi-llm": "PI-LLM", "unrelated": "unrelated text"}
_ROLES = ("asked", "later", "paraphrased")


def repairs_row(report: Report, task: str, way: str, role: str = "all") -> Report:
    """The row of the summary of `bench repairs` for one family, way and kind of question."""
    (row,) = (row for row in report["summary"] if (row["task"], row["way"], row["role"]) == (task, way, role))
    return row


def _families(reports: Reports) -> Iterator[list[str]]:
    report = reports[_FILE]
    for task in dict.fromkeys(row["task"] for row in report["summary"]):
        auto, reuse, exact = (repairs_row(report, task, way) for way in ("auto", "reuse", "exact"))
        beside = points(auto["right_beside_exact"], auto["right_beside_exact_interval"])
        kl = f"{auto['kl']:.3f}{interval(auto['kl_interval'], 1, 3)}"
        right, moved = share(exact["right"]), share(auto["moved_share"])
        yield [_FAMILIES.get(task, task), right, beside, kl, f"{reuse['kl']:.3f}", moved]


def _kinds(reports: Reports) -> Iterator[list[str]]:
    for way, title in _WAYS.items():
        rows = [repairs_row(reports[_FILE], "the whole mix", way, role) for role in _ROLES]
        yield [title, *(points(row["right_beside_exact"], row["right_beside_exact_interval"]) for row in rows)]


def _floor(reports: Reports) -> str:
    out = ", ".join(f"{size} ({share(right)})" for size, right in reports[_FILE]["at_floor"].items())
    return f"Sizes of which `exact` itself answers less than 20 % are out, for they cannot show harm: {out or 'none'}."


def _harm(reports: Reports) -> str:
    harm = reports[_FILE]["harm"]
    return (
        f"`auto` is worse than `reuse` by more than 0.1 nats in {harm['num_edits_harmed']} of {harm['num_edits']} "
        f"edits, and in {harm['num_questions_harmed']} of {harm['num_questions']} single questions."
    )


def _control(reports: Reports) -> str:
    rows = [repairs_row(reports[_FILE], "the whole mix", "question's words", role) for role in _ROLES]
    asked, later, _ = (points(row["right_beside_exact"]) for row in rows)
    return (
        f"The control computes what has words in common with the first question. It has {asked} points on that "
        f"question and {later} on later ones. With one question a cache it would look good."
    )


def _stopped(reports: Reports) -> str:
    counts = [repairs_row(reports[_FILE], task, "auto")["num_cases"] for task in PRECISE]
    return (
        f"The run was stopped for its length: {counts[0]} cases of lists and {counts[1]} of clearing with one result "
        "kept were run, of 36 each. Their intervals are wider than was planned."
    )


def _rule(reports: Reports) -> str:
    report = reports[_FILE]
    return (
        f"The {report['num_cases']} cases have held-out seeds. They were run once, with the rule {report['rule']} "
        "fixed before. [The log](../benchmarks/LOG.md) has its digest from before the run."
    )


REPAIRS = (
    PageSection(
        "Fidelity: repaired caches",
        "Is a repaired cache right for a question that the repair did not see?",
        "acmserve bench repairs --cases 12",
        "Receipts add up. All questions of a way find one cache. The control is caught.",
        (_FILE,),
        (
            PageTable(
                (
                    "family",
                    "right under `exact`",
                    "`auto` beside it, points",
                    "KL of `auto`, nats",
                    "of `reuse`",
                    "moved by `auto`",
                ),
                _families,
            ),
            PageTable(
                ("right beside `exact`, points", *_ROLES),
                _kinds,
                "The whole mix by kind of question. A repair may look at the first kind only.",
            ),
        ),
        (
            _rule,
            _stopped,
            _floor,
            _control,
            "The model has 135M parameters, and all thresholds of `auto` were set on it.",
        ),
        is_optional=True,
        answer=_harm,
    ),
)
