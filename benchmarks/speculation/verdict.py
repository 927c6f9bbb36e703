"""The report of `bench speculation-tokens`: tokens compared, drafts by what became of them, and the gate. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.harness.markdown_text import count
from acmserve.bench.harness.options import as_gate
from acmserve.bench.speculation.compared import REUSE
from acmserve.bench.speculation.conversations import KINDS
from acmserve.bench.speculation.run import DRAFTED, EXACT

LEAST_COMPARED, LEAST_ACCEPTED_TOKENS = 10_000, 1_000
"""Tokens of answers whose draft was verified, and how many of them have to be accepted drafts.

All tokens of such an answer count, also those that are decoded plainly behind a rejection. So 10,000 of them alone
could hold next to no token of a draft.
"""
_LEAST_DRAFTED = 1 / 20
"""Of the tokens that count. With fewer drafted ones the run would say nothing of drafts."""
_VERIFIED = "verified"

Row = Mapping[str, Any]


def as_report(rows: Sequence[Row], num_asked: int, num_answer: int) -> dict[str, Any]:
    """JSON-ready. What differs stays in the file behind a red gate, too."""
    found = sum_up(rows)
    sizes = {"asked_tokens": num_asked, "answer_tokens": num_answer}
    return {"gate": as_gate(find_failures(rows, num_asked)), "sizes": sizes, **found, "conversations": list(rows)}


def sum_up(rows: Sequence[Row]) -> dict[str, Any]:
    """Counts of all conversations, by way, by kind of text and by reason."""
    turns = [turn for row in rows for turn in row["turns"]]
    controls = [turn["control"] for turn in turns if "control" in turn]
    by_kind = [
        _sum_kind(kind, [turn for row in rows if row["kind"] == kind for turn in row["turns"]]) for kind in KINDS
    ]
    reasons = Counter(turn["reason"] or _VERIFIED for turn in turns)
    return {
        "ways": [_way(EXACT, turns, 0), _way(DRAFTED, turns), _way(REUSE, controls)],
        "verified_tokens": num_verified_tokens(rows),
        "accepted_tokens": num_accepted_tokens(rows),
        "tokens_behind_rejections": num_behind_rejections(rows),
        "kinds": [kind for kind in by_kind if kind["num_answers"]],
        "reasons": [{"reason": reason, "num_answers": num} for reason, num in reasons.most_common()],
    }


def num_verified_tokens(rows: Sequence[Row]) -> int:
    """Tokens of answers whose draft was verified. Any other answer is plain `exact`, and says nothing of drafts."""
    return sum(turn["num_tokens"] for turn in _verified_turns(rows))


def num_accepted_tokens(rows: Sequence[Row]) -> int:
    """Those of them that are tokens of drafts."""
    return sum(turn["accepted_tokens"] for turn in _verified_turns(rows))


def num_behind_rejections(rows: Sequence[Row]) -> int:
    """Those of them that were decoded plainly, since a token of the draft before them was rejected."""
    turns = (turn for turn in _verified_turns(rows) if turn["accepted_tokens"] < turn["drafted_tokens"])
    return sum(turn["num_tokens"] - turn["accepted_tokens"] for turn in turns)


def least_accepted(num_asked: int) -> int:
    """How many of so many tokens have to be accepted drafts."""
    return num_asked * LEAST_ACCEPTED_TOKENS // LEAST_COMPARED


def _verified_turns(rows: Sequence[Row]) -> list[Row]:
    return [turn for row in rows for turn in row["turns"] if turn["reason"] is None]


def find_failures(rows: Sequence[Row], num_asked: int) -> list[str]:
    """Why these tokens are no evidence: one differs, too few count, or nothing would have been seen."""
    turns = [turn for row in rows for turn in row["turns"]]
    failures = [failure for turn in turns for failure in turn["failures"]]
    if differing := sum(turn["num_differing"] for turn in turns):
        total = sum(turn["num_tokens"] for turn in turns)
        failures.insert(0, f"other tokens than under exact, in drafted answers: {differing:,} of {total:,}")
    if (compared := num_verified_tokens(rows)) < num_asked:
        failures.append(f"{compared:,} tokens have a verified draft, {num_asked:,} are asked for")
    verified = _verified_turns(rows)
    drafted = sum(turn["drafted_tokens"] for turn in verified)
    if drafted <= compared * _LEAST_DRAFTED:
        failures.append(f"{drafted:,} tokens were drafted for {compared:,} of answers: nothing is said of drafts")
    if not any(turn["accepted_tokens"] for turn in verified):
        failures.append("no drafted token was accepted, so no answer has one")
    controls = [turn["control"] for turn in turns if "control" in turn]
    if not any(one["num_differing"] and one["moved_tokens"] for one in controls):
        failures.append("the control: moved KV, shown as exact, gives no other token, so no difference would be seen")
    return failures


def _way(name: str, turns: Sequence[Row], num_differing: int | None = None) -> dict[str, Any]:
    differing = sum(turn["num_differing"] for turn in turns) if num_differing is None else num_differing
    tokens = sum(turn["num_tokens"] for turn in turns)
    return {"way": name, "num_answers": len(turns), "num_tokens": tokens, "num_differing": differing}


def _sum_kind(kind: str, turns: Sequence[Row]) -> dict[str, Any]:
    names = ("num_tokens", "num_differing", "drafted_tokens", "accepted_tokens")
    sums = {name: sum(turn[name] for turn in turns) for name in names}
    num_verified = sum(turn["reason"] is None for turn in turns)
    return {"kind": kind, "num_answers": len(turns), "num_verified": num_verified, **sums}


def told_tokens(report: Report) -> str:
    """What the run came to, in a sentence."""
    (differing,) = (way["num_differing"] for way in report["ways"] if way["way"] == DRAFTED)
    compared = f"Of {report['verified_tokens']:,} tokens of drafted and verified answers"
    told = f"{compared} {differing:,} differ from those of `exact`."
    accepted, behind = report["accepted_tokens"], report["tokens_behind_rejections"]
    return f"{told} {accepted:,} of them were accepted drafts, and {behind:,} followed a rejection."


def too_few_compared(report: Report) -> str:
    """What people read of the bar where it is missed, "" where it is met. Whatever differs turns the gate red."""
    bars = (
        (report["verified_tokens"], "tokens of drafted answers were compared", LEAST_COMPARED),
        (report["accepted_tokens"], "accepted tokens of drafts were compared", LEAST_ACCEPTED_TOKENS),
    )
    return " ".join(f"{found:,} {what}, and {least:,} were to be." for found, what, least in bars if found < least)


_TITLES = {
    EXACT: "`exact`",
    DRAFTED: "`exact`, drafted",
    REUSE: "the control: moved KV, shown as exact",
}


def _ways(report: Report) -> Iterator[list[str]]:
    for way in report["ways"]:
        differing = "" if way["way"] == EXACT else f"{way['num_differing']:,}"
        yield [_TITLES[way["way"]], count(way["num_answers"]), count(way["num_tokens"]), differing]


def _kinds(report: Report) -> Iterator[list[str]]:
    for kind in report["kinds"]:
        verified = f"{kind['num_verified']} of {kind['num_answers']}"
        names = ("num_tokens", "num_differing", "drafted_tokens", "accepted_tokens")
        yield [kind["kind"], verified, *(f"{kind[name]:,}" for name in names)]


def _reasons(report: Report) -> Iterator[list[str]]:
    for one in report["reasons"]:
        yield [one["reason"], count(one["num_answers"])]


WAYS_TABLE = ResultTable(("way", "answers", "tokens", "other tokens than `exact`"), _ways)
KINDS_TABLE = ResultTable(
    ("text", "drafts verified", "tokens", "other tokens", "drafted tokens", "accepted"),
    _kinds,
    "By the text that is folded.",
)
REASONS_TABLE = ResultTable(
    ("what became of a draft", "answers"), _reasons, "An answer without a draft is plain `exact`."
)
