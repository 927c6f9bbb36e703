"""Sections about several sessions beside stock vLLM, in turns and in sessions that arrive by chance.

Each stands on the page once its load was run. What `auto` computes there is counted apart, on a model of one layer.
The third number of the first screen is made here, too: turns a second of `reuse` over stock, at four and sixteen. So
are the bars of `auto` beside stock, one for each load of four sessions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from acmserve.bench.agent.result_table import Report
from acmserve.bench.harness.markdown_text import MET, MISSED, NOT_MEASURED, interval, ratio, share
from acmserve.bench.provenance.repetitions import few_told
from acmserve.bench.report.page_section import PageSection, Reports, page_table
from acmserve.bench.trace.table import COUNTS, SERVERS, WAITS

_GROUP = "Several sessions, and sessions that arrive by chance"
_LOADS = {
    "trace-4": (
        "Four sessions at a time",
        "--concurrency 4 --turns 4 --policies recency@1 --against exact,auto,reuse,stock",
    ),
    "trace-4-clear": (
        "Four sessions at a time, with clearing",
        "--concurrency 4 --budget 3500 --turns 12 --policies clear_tool_uses --against exact,auto,reuse,stock",
    ),
    "trace-16": (
        "Sixteen sessions at a time",
        "--concurrency 16 --budget 3000 --skip 4 --turns 3 --policies recency@1 --against exact,reuse,stock",
    ),
    "trace-open": (
        "Sessions that arrive by chance",
        "--concurrency 6 --arrivals 1 --turns 6 --policies recency@1 --against exact,reuse,stock",
    ),
}
MOST_COMPUTED = 1.15
"""The bar of `auto`: tokens computed over those that are new in the conversation, with clearing."""
AUTO_RESULT, CLEARING, OFTEN = "trace-auto", "clear_tool_uses", "recency@1"
_CLEARED = "trace-4-clear"
SINGLE = "trace"
"""One session in float32: told on the first screen while neither load below was run, and held against no bar."""
NUM_SESSIONS = {"trace-4": 4, "trace-16": 16}
"""Sessions at a time, by result. The bar of turns a second is about these."""
LEAST_TIMES = 2
_REUSE, _STOCK, _RARE = "reuse", "stock", "cwl"


@dataclass(frozen=True, slots=True)
class AutoBar:
    """What `auto` is to reach beside stock vLLM at the load `name`. `key` is that ratio in a row of `bench trace`.

    By the ratio, as turns a second of `reuse` are judged.
    """

    name: str
    load: str
    what: str
    key: str
    bar: float
    is_most: bool

    def missed(self, reports: Reports) -> str:
        """What people read while it is missed, or was not measured. "" where it is met."""
        found = self._found(reports)
        if found is None:
            return f"{self.load}, {self.what} under `auto` were not measured. {self._asked}"
        return "" if self._is_met(found) else f"{self.load}, {self._told(found)} {self._asked}"

    def verdict(self, reports: Reports) -> str:
        """The same in one word, with the bar."""
        found = self._found(reports)
        word = NOT_MEASURED if found is None else MET if self._is_met(found) else MISSED
        return f"The bar of `auto` is {self.bar:g} times stock's {self.what} at {self._limit}: {word}."

    def _found(self, reports: Reports) -> Report | None:
        """None where the file has no `auto`, or no edit."""
        rows = [row for row in reports[self.name]["rows"] if row["server"] == "auto"]
        return rows[0].get(self.key) if rows else None

    def _is_met(self, found: Report) -> bool:
        return bool(found["ratio"] <= self.bar if self.is_most else found["ratio"] >= self.bar)

    def _told(self, found: Report) -> str:
        return f"{self.what} under `auto` are {ratio(found['ratio'])}{interval(found['interval'])} times stock's."

    @property
    def _limit(self) -> str:
        return "most" if self.is_most else "least"

    @property
    def _asked(self) -> str:
        return f"They were to be {self.bar:g} at {self._limit}."


AUTO_BARS = (
    AutoBar(
        "trace-4-clear",
        "With four sessions and clearing",
        "waits for first tokens after an edit",
        "edited_beside_stock",
        0.5,
        is_most=True,
    ),
    AutoBar(
        "trace-4",
        "With four sessions and a third of the turns edited",
        "turns a second",
        "rate_beside_stock",
        LEAST_TIMES,
        is_most=False,
    ),
)
_AUTO_BARS = {one.name: one for one in AUTO_BARS}


def _section(name: str, title: str, load: str) -> PageSection:
    is_cleared = name == _CLEARED
    share_of_edits = "quarter" if is_cleared else "third"

    def answer(reports: Reports) -> str:
        rows = {row["server"]: row for row in reports[name]["rows"]}
        auto = f"`auto` {rate_text(rows['auto'])} times, " if "auto" in rows else ""
        return (
            f"`reuse` answers {rate_text(rows['reuse'])} times as many turns a second as stock vLLM, {auto}"
            f"and `exact` {rate_text(rows['exact'])} times.{_after_edit(rows)}"
        )

    def edits(reports: Reports) -> str:
        report, row = reports[name], reports[name]["rows"][0]
        return f"Of {row['num_turns']} turns {row['num_edits']} edit. {_answers(report)}{pauses_told(report)}"

    def precision(reports: Reports) -> str:
        if not reports[name].get("at_defaults"):
            return "All servers compute in float32, and none is compiled."
        found = reports[name].get("nats_from_stock", {}).values()
        return "In bfloat16 stock is not always the same as itself." + "".join(map(_apart, found))

    return PageSection(
        title,
        f"How many turns a second does a server answer, where about a {share_of_edits} of them edit?",
        f"acmserve bench trace {load} --answer-tokens 0",
        "All turns answered. No prompt above the budget. Receipts add up. `exact` samples stock's tokens.",
        (name, AUTO_RESULT) if is_cleared else (name,),
        (page_table(SERVERS, name), page_table(WAITS, name)),
        (
            edits,
            *([first_edits] if is_cleared else []),
            precision,
            *([_AUTO_BARS[name].verdict] if name in _AUTO_BARS else []),
        ),
        is_optional=True,
        answer=answer,
        group=_GROUP,
    )


def first_edits(reports: Reports) -> str:
    """How many turns edit in the timed window, and in all. A first edit moves nothing that was moved before."""
    timed, counted = (_rows(reports[name], CLEARING)["auto"] for name in (_CLEARED, AUTO_RESULT))
    num_turns, budget = len(counted["turns"][0]["is_edited"]), reports[AUTO_RESULT]["budget"]["max_tokens"]
    return (
        f"{_first(timed)} Over {num_turns} turns of each session at {budget:,} tokens it is otherwise. "
        f"There {_first(counted)}"
    )


def _first(row: Report) -> str:
    num_first = sum(any(one["is_edited"]) for one in row["turns"])
    edits = f"{row['num_edits']} of {row['num_turns']} turns ({share(row['num_edits'] / row['num_turns'])})"
    return f"{edits} edit, {num_first} of them as the first edit of their session."


def pauses_told(report: Report) -> str:
    """A sentence with a space in front, where agents waited less than they were recorded to."""
    scale = report.get("scale", 1)
    return "" if scale == 1 else f" Between turns an agent waits {share(scale)} of what was recorded."


def _answers(report: Report) -> str:
    num = report["max_tokens"]
    return f"Answers have {num} tokens." if num else "Answers have as many tokens as the recorded ones."


def rests_on(*reports: Report) -> str:
    """What a rate rests on, in parentheses: few repetitions, and pauses and answers that were cut. "" where none."""
    pauses = [f"pauses at {share(scale)}" for scale in {one.get("scale", 1) for one in reports} - {1}]
    answers = [f"answers of {num} tokens" for num in {one.get("max_tokens", 0) for one in reports} - {0}]
    told = ", ".join(filter(None, [few_told(*reports), *pauses, *answers]))
    return f" ({told})" if told else ""


def _apart(found: Report) -> str:
    """How far log-probabilities are from those of stock. Nothing where one of the three was not asked."""
    if not found.keys() >= {"stock", "exact", "reuse"}:
        return ""
    return (
        f" Its log-probabilities are {found['stock']:.3f} nats from its own. Those of `exact` are {found['exact']:.3f} "
        f"from stock's, and those of moved KV {found['reuse']:.3f}."
    )


def _after_edit(rows: Report) -> str:
    """First tokens beside those of stock. Files of older runs have none."""
    found = {name: row["edited_beside_stock"] for name, row in rows.items() if row.get("edited_beside_stock")}
    told = ", ".join(
        f"`{name}` {ratio(found[name]['ratio'])}{interval(found[name]['interval'])}"
        for name in ("reuse", "auto", "exact")
        if name in found
    )
    return f" Waiting for first tokens after an edit, in stock's: {told}." if told else ""


def rate_text(row: Report) -> str:
    """Turns a second beside stock, with the interval."""
    return f"{ratio(row['rate_beside_stock']['ratio'])}{interval(row['rate_beside_stock']['interval'])}"


def computed_over_new(reports: Reports, server: str) -> dict[str, float]:
    """Tokens that a server computes over those that are new, by policy."""
    return {
        row["policy"]: row["computed_tokens"] / _new_tokens(reports)
        for row in reports[AUTO_RESULT]["rows"]
        if row["server"] == server
    }


def _new_tokens(reports: Reports) -> int:
    """Without an edit `exact` computes what is new, and nothing else."""
    rows = reports[AUTO_RESULT]["rows"]
    (new,) = (row["computed_tokens"] for row in rows if (row["policy"], row["server"]) == ("none", "exact"))
    return int(new)


def _computed(reports: Reports) -> str:
    auto, stock = (computed_over_new(reports, server) for server in ("auto", "stock"))
    told = [
        f"{ratio(auto[policy])} times as many {how}, where stock computes {ratio(stock[policy])}"
        for policy, how in ((CLEARING, "with clearing"), (OFTEN, "with a third of the turns edited"))
    ]
    new = _new_tokens(reports)
    return f"Of {new:,} tokens that are new `auto` computes {told[0]}. It is {told[1]}. The bar is {MOST_COMPUTED}."


_AUTO = PageSection(
    "What `auto` computes",
    "How many tokens does `auto` compute beyond those that are new, with four sessions at a time?",
    "acmserve bench trace --model tiny --concurrency 4 --policies none,clear_tool_uses,recency@1 "
    "--against exact,auto,reuse,stock --answer-tokens 4 --repetitions 1",
    "All turns answered. No prompt above the budget. Receipts add up.",
    (AUTO_RESULT,),
    (page_table(COUNTS, AUTO_RESULT),),
    ("Echoes are found in token ids, so a random model of one layer counts the same.",),
    is_optional=True,
    answer=_computed,
    group=_GROUP,
)
LOADS = (*(_section(name, *about) for name, about in _LOADS.items()), _AUTO)


def least_rate(reports: Reports) -> float | None:
    """The lower of both. None while one was not run and the other one does not miss the bar."""
    found = [float(rows[_REUSE]["rate_beside_stock"]["ratio"]) for rows in _loads(reports).values()]
    lowest = min(found, default=None)
    is_judged = lowest is not None and (lowest < LEAST_TIMES or len(found) == len(NUM_SESSIONS))
    return lowest if is_judged else None


def rate_line(reports: Reports) -> str:
    """What was measured."""
    loads = _loads(reports)
    if not loads:
        rate = _single(_rows(reports[SINGLE], OFTEN), _REUSE)
        return f"{rate} times with one session in float32{rests_on(reports[SINGLE])}"
    return f"{_rates(loads, _REUSE)} sessions{rests_on(*(reports[name] for name in loads))}"


def beside_line(reports: Reports) -> str:
    """The other ways at the same loads, how many turns edit there, and what tokens allow where edits are rare."""
    loads = _loads(reports)
    often, rare = _rows(reports[SINGLE], OFTEN), _rows(reports[SINGLE], _RARE)
    ways = [f"`{way}` {told}" for way in ("auto", "exact") if (told := _rates(loads, way))]
    edits = ", ".join(dict.fromkeys(map(_edits, loads.values() or [often])))
    bound = f"Where {_edits(rare)} does, tokens allow `{_REUSE}` {ratio(_by_tokens(rare))} times at most"
    return ". ".join([*(ways or [f"`exact` {_single(often, 'exact')} times"]), f"{edits} turns edit", bound])


def missed_line(reports: Reports) -> str:
    """Why it is missed: what tokens alone would allow at these loads."""
    return f"by tokens alone it would be {' and '.join(ratio(_by_tokens(rows)) for rows in _loads(reports).values())}."


def _rates(loads: Mapping[str, Mapping[str, Report]], way: str) -> str:
    """Of one way at the loads that have it."""
    return ", ".join(f"{rate_text(rows[way])} with {NUM_SESSIONS[name]}" for name, rows in loads.items() if way in rows)


def _loads(reports: Reports) -> dict[str, Mapping[str, Report]]:
    """Rows by server of each load that was run beside stock, where edits are many."""
    found = {name: _rows(reports[name], OFTEN) for name in NUM_SESSIONS if name in reports}
    return {name: rows for name, rows in found.items() if rows.get(_REUSE, {}).get("rate_beside_stock")}


def _rows(report: Report, policy: str) -> dict[str, Report]:
    return {row["server"]: row for row in report["rows"] if row["policy"] == policy}


def _single(rows: Mapping[str, Report], way: str) -> str:
    """Older files have rates alone, so it is without an interval."""
    return ratio(rows[way]["turns_per_second"]["median"] / rows[_STOCK]["turns_per_second"]["median"])


def _edits(rows: Mapping[str, Report]) -> str:
    return f"{rows[_REUSE]['num_edits']} of {rows[_REUSE]['num_turns']}"


def _by_tokens(rows: Mapping[str, Report]) -> float:
    return float(rows[_STOCK]["computed_tokens"] / rows[_REUSE]["computed_tokens"])
