"""The report of `bench speculation`: how an answer with a draft compares with prefill and decode alone. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from acmserve.bench.agent.estimates import bootstrap_interval
from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.harness.markdown_text import MET, MISSED, interval, milliseconds, ratio, seconds
from acmserve.bench.harness.options import as_gate
from acmserve.bench.speculation.cases import KINDS, ORDINARY
from acmserve.bench.speculation.run import DECODE, DRAFTED, EXACT, PREFILL

MOST_OVER_LONGER = 1.2
LEAST_ACCEPTED = 0.9
_WAYS = (EXACT, DRAFTED, PREFILL, DECODE)
_NUM_SAMPLES = 2_000

Row = Mapping[str, Any]


def as_report(rows: Sequence[Row], sizes: Mapping[str, int]) -> dict[str, Any]:
    """JSON-ready. No numbers where a case failed."""
    failures = [failure for row in rows for failure in row["failures"]]
    cases = [] if failures else list(rows)
    return {"gate": as_gate(failures), "sizes": dict(sizes), **sum_up(cases), "cases": cases}


def sum_up(cases: Sequence[Row]) -> dict[str, Any]:
    """What cases come to, JSON-ready. A recorded result is told anew by it. Nothing of no case."""
    kinds = [_kind(kind, [row for row in cases if row["kind"] == kind]) for kind in KINDS] if cases else []
    num = min((kind["num_cases"] for kind in kinds), default=0)
    return {"repetitions": num, "kinds": kinds, "bars": find_bars(kinds)}


def over_longer(row: Row) -> float:
    """A drafted answer over the longer of prefill and decode."""
    return float(row["drafted_seconds"] / max(row["prefill_seconds"], row["decode_seconds"]))


def over_sum(row: Row) -> float:
    """A drafted answer over the sum of prefill and decode, which is what `exact` takes."""
    return float(row["drafted_seconds"] / (row["prefill_seconds"] + row["decode_seconds"]))


def exact_over_sum(row: Row) -> float:
    """The control: 1 where prefill and decode alone are what `exact` is made of."""
    return float(row["exact_seconds"] / (row["prefill_seconds"] + row["decode_seconds"]))


def over_exact(row: Row) -> float:
    """Above 1 a draft was a loss."""
    return float(row["drafted_seconds"] / row["exact_seconds"])


def _kind(kind: str, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "kind": kind,
        "num_cases": len(rows),
        "num_verified": sum(row["reason"] is None for row in rows),
        "median_seconds": {way: statistics.median(row[f"{way}_seconds"] for row in rows) for way in _WAYS},
        "over_longer": _estimate(rows, over_longer),
        "over_sum": _estimate(rows, over_sum),
        "exact_over_sum": _estimate(rows, exact_over_sum),
        "over_exact": _estimate(rows, over_exact),
        "num_same": sum(row["num_same"] for row in rows),
        "num_tokens": sum(row["num_tokens"] for row in rows),
        "drafted_tokens": sum(row["drafted_tokens"] for row in rows),
        "accepted": _accepted([row for row in rows if row["drafted_tokens"]]),
    }


def _accepted(rows: Sequence[Row]) -> dict[str, Any] | None:
    """By case: all tokens together would be those of the one draft that is accepted whole. None without a draft."""
    if not rows:
        return None
    found = [row["accepted_tokens"] for row in rows]
    shares = [row["accepted_tokens"] / row["drafted_tokens"] for row in rows]
    told = {"median": statistics.median(found), "least": min(found), "most": max(found)}
    return told | {"median_share": round(statistics.median(shares), 4)}


def _estimate(rows: Sequence[Row], of: Callable[[Row], float]) -> dict[str, Any]:
    ratios = [of(row) for row in rows]
    return {
        "median": round(statistics.median(ratios), 4),
        "interval": bootstrap_interval(ratios, statistics.median, _NUM_SAMPLES),
    }


def find_bars(kinds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the project set itself, on ordinary text. Nothing drafted meets no bar."""
    found = [kind for kind in kinds if kind["kind"] == ORDINARY]
    if not found:
        return []
    longer, accepted = found[0]["over_longer"]["median"], found[0]["accepted"]
    share_of_case = None if accepted is None else accepted["median_share"]
    return [
        {
            "what": "drafted answer over the longer of prefill and decode, median",
            "value": longer,
            "bar": f"at most {MOST_OVER_LONGER:g}",
            "is_met": found[0]["num_verified"] > 0 and longer <= MOST_OVER_LONGER,
        },
        {
            "what": "accepted of the drafted tokens, median by case",
            "value": share_of_case,
            "bar": f"at least {LEAST_ACCEPTED:g}",
            "is_met": share_of_case is not None and share_of_case >= LEAST_ACCEPTED,
        },
    ]


def told_of_whole_drafts(report: Report) -> str:
    """What drafts took that were accepted to their last token, beside `exact`. "" where there are none."""
    whole = [case for case in report["cases"] if 0 < case["drafted_tokens"] == case["accepted_tokens"]]
    if not whole:
        return ""
    took, exact = (" and ".join(seconds(case[f"{way}_seconds"]) for case in whole) for way in (DRAFTED, EXACT))
    drafts = "A draft that was" if len(whole) == 1 else "Drafts that were"
    told = f"{drafts} accepted whole took {took}, where `exact` took {exact}."
    if any(over_exact(case) < 1 for case in whole):
        return told
    return f"{told} So acceptance alone is not what a draft lacks here."


def _answers(report: Report) -> Iterator[list[str]]:
    for kind in report["kinds"]:
        times = [milliseconds(kind["median_seconds"][way]) for way in _WAYS]
        names = ("over_longer", "over_sum", "over_exact")
        ratios = [f"{ratio(kind[name]['median'])}{interval(kind[name]['interval'])}" for name in names]
        yield [kind["kind"], *times, *ratios]


def _drafts(report: Report) -> Iterator[list[str]]:
    for kind in report["kinds"]:
        found = kind["accepted"]
        accepted = "" if found is None else f"{found['median']:g} ({found['least']} to {found['most']})"
        same = f"{kind['num_same']:,} of {kind['num_tokens']:,}"
        verified = f"{kind['num_verified']} of {kind['num_cases']}"
        yield [kind["kind"], verified, f"{kind['drafted_tokens']:,}", accepted, same]


def _bars(report: Report) -> Iterator[list[str]]:
    for bar in report["bars"]:
        value = "" if bar["value"] is None else ratio(bar["value"])
        yield [bar["what"], value, bar["bar"], MET if bar["is_met"] else MISSED]


ANSWERS_TABLE = ResultTable(
    (
        "text",
        "`exact`",
        "`exact`, drafted",
        "prefill alone",
        "decode alone",
        "drafted over the longer",
        "over their sum",
        "over `exact`",
    ),
    _answers,
    "Seconds to the last token of an answer behind a fold, medians over the cases.",
)
DRAFTS_TABLE = ResultTable(
    ("text", "drafts verified", "drafted tokens", "accepted in a case, median and range", "tokens as `exact`"),
    _drafts,
    "A rejected draft is a loss. Accepted tokens are told by case, since one whole draft would stand for all.",
)
BARS_TABLE = ResultTable(("on ordinary text", "seen", "bar", ""), _bars)
