"""Bars beside the five numbers of the first screen: what misses one is said there, with the reason.

A row tells nothing where its bar is met, and is left out while a file of its results is missing. It reads results, and
knows no benchmark but the bars that each has set for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from acmserve.bench.agent.result_table import Report
from acmserve.bench.gpu.stage import FOLD
from acmserve.bench.harness.markdown_text import MISSED, UNDECIDED, listed, ratio, share
from acmserve.bench.precompute.bars import MOST_APPENDS
from acmserve.bench.repairs import thoughts
from acmserve.bench.repairs.cases import FAMILY_TITLES
from acmserve.bench.repairs.recorded import recorded_harm, recorded_row
from acmserve.bench.repairs.summary import (
    HARM_NATS,
    LEAST_MOVED,
    MAX_KL,
    MIX,
    MOST_LOST,
    WIDEST_INTERVAL,
    width_of,
    within_loss,
)
from acmserve.bench.report.page_section import Reports
from acmserve.bench.report.sections.agents import HYBRID_RESULTS, times_fewer
from acmserve.bench.report.sections.edits import KINDS_OF_PROCESSORS, auto_after_fold
from acmserve.bench.report.sections.gpu import RESULT as GPU_RESULT
from acmserve.bench.report.sections.gpu import fold_appends, of_few, overhead_missed, slowest_of
from acmserve.bench.report.sections.loads import (
    AUTO_BARS,
    AUTO_RESULT,
    CLEARING,
    MOST_COMPUTED,
    OFTEN,
    computed_over_new,
)
from acmserve.bench.report.sections.micro import missed_by_passes, missed_by_searches, slowest_move
from acmserve.bench.report.sections.repairs import RESULT as REPAIRS_RESULT
from acmserve.bench.report.sections.repairs import with_rule
from acmserve.bench.report.sections.scale import TIMES as SCALE_TIMES
from acmserve.bench.report.sections.scale import missed_at_length
from acmserve.bench.speculation.table import LEAST_ACCEPTED, told_of_whole_drafts
from acmserve.bench.speculation.verdict import too_few_compared

PAIRED = ("precompute-paired", "precompute-paired-clear")
DROPPED = "precompute-paired-thoughts"
"""Precompute where the template drops reasoning."""
MOST_APPENDS_AT_FOLD = 1.1
_NO_EDITED_TURN = "With precompute no turn behind an eviction had a pause of a second, so that bar was not measured."
_CHAIN_MOST_APPENDS, _LEAST_FEWER, _LEAST_SPEED = 1.25, 5, 0.8


@dataclass(frozen=True, slots=True)
class BesideBar:
    """`told` makes what people read of a bar that is missed, "" where it is met. `files` are its results.

    Bars of one `topic` stand in one line.
    """

    files: Sequence[str]
    told: Callable[[Reports], str]
    topic: str = ""


def _edited_turns(reports: Reports) -> str:
    bars = [reports[name]["bars"][-1] for name in PAIRED]
    if all(bar["is_met"] for bar in bars):
        return ""
    if any(bar["value"] is None for bar in bars):
        return _NO_EDITED_TURN
    found = " and ".join(ratio(bar["value"]) for bar in bars)
    turns = " and ".join(str(bar["num_turns"]) for bar in bars)
    return (
        f"The turn behind an eviction takes {found} appends by p90 with precompute, {MOST_APPENDS} at most. "
        f"Of {turns} turns that is one or two, for which little was ready."
    )


def _behind_dropped(reports: Reports) -> str:
    bar = reports[DROPPED]["bars"][-1]
    if bar["is_met"]:
        return ""
    if bar["value"] is None:
        return _NO_EDITED_TURN
    return (
        f"The turn behind dropped reasoning takes {ratio(bar['value'])} appends by p90 with precompute, "
        f"{MOST_APPENDS} at most, of {bar['num_turns']} turns."
    )


def _drafted(reports: Reports) -> str:
    kind, bars = reports["speculation"]["kinds"][0], reports["speculation"]["bars"]
    if all(bar["is_met"] for bar in bars):
        return ""
    told = f"A drafted answer takes {ratio(kind['over_exact']['median'])} times as long as `exact` alone."
    if kind["accepted"] is None:
        return f"{told} Nothing was drafted."
    accepted = share(kind["accepted"]["median_share"])
    by_case = (
        f"In the median case {accepted} of its drafted tokens are accepted, and {share(LEAST_ACCEPTED)} were to be."
    )
    return " ".join(filter(None, (told, by_case, told_of_whole_drafts(reports["speculation"]))))


def _auto_behind_thoughts(reports: Reports) -> str:
    ways = {way["name"]: way["appends"] for way in reports["precompute-thoughts"]["ways"]}
    if ways["auto"] <= _CHAIN_MOST_APPENDS:
        return ""
    lost = -recorded_row(reports["repairs-thoughts"], thoughts.TASK, "reuse")["right_beside_exact"]
    return (
        f"`auto` takes {ways['auto']:.1f} appends behind dropped reasoning, {_CHAIN_MOST_APPENDS} at most. "
        f"A move alone loses {100 * lost:.0f} points there, so `auto` computes the chain."
    )


def _repaired(reports: Reports) -> str:
    """A sentence for each of its bars that is missed, and one for what the run cannot decide."""
    report = reports[REPAIRS_RESULT]
    rows = [recorded_row(report, task, "auto") for task in dict.fromkeys(row["task"] for row in report["summary"])]
    barred = {row["task"]: row for row in rows if row["task"] in LEAST_MOVED}
    told = [
        f"Of {task} `auto` moves {share(row['moved_share'])}, not {share(LEAST_MOVED[task])}."
        for task, row in barred.items()
        if row["moved_share"] < LEAST_MOVED[task]
    ]
    harm = recorded_harm(report)
    if num_harmed := harm["num_edits_harmed"]:
        edits = f"{num_harmed} of {harm['num_edits']} edits"
        told += [f"`auto` is worse than `reuse` by more than {HARM_NATS} nats in {edits}, 0 at most."]
    if far := [row for row in rows if row["kl"] > MAX_KL]:
        found = listed([f"{row['kl']:.3f} nats for {FAMILY_TITLES.get(row['task'], row['task'])}" for row in far])
        told += [f"KL is {found}, {MAX_KL} at most."]
    return with_rule(report, " ".join([*told, *_within_loss(rows)]))


def _within_loss(rows: Sequence[Report]) -> Iterator[str]:
    """Which families, the mix among them, lose more than the bar, and of how many an interval is too wide to tell."""
    if lost := [row for row in rows if within_loss(row) == MISSED]:
        lows = {FAMILY_TITLES.get(row["task"], row["task"]): row["right_beside_exact_interval"][0] for row in lost}
        found = listed([f"{-100 * low:.1f} points of {title}" for title, low in lows.items()])
        yield f"Beside `exact` it may lose {found}, {100 * MOST_LOST:.0f} at most."
    if not (open_rows := [row for row in rows if within_loss(row) == UNDECIDED]):
        return
    num_open = sum(row["task"] != MIX for row in open_rows)
    where = [f"{num_open} of {sum(row['task'] != MIX for row in rows)} families"] * bool(num_open)
    where += [MIX] * (num_open < len(open_rows))
    yield f"Whether it loses at most {100 * MOST_LOST:.0f} point the run cannot decide for {' and '.join(where)}."
    widest = max(width_of(row) for row in open_rows)
    if widest > WIDEST_INTERVAL:
        yield f"Intervals there are up to {100 * widest:.1f} points wide, {100 * WIDEST_INTERVAL:.0f} at most."


def _computed_by_auto(reports: Reports) -> str:
    found = computed_over_new(reports, "auto")
    if found[CLEARING] <= MOST_COMPUTED:
        return ""
    return (
        f"`auto` computes {ratio(found[CLEARING])} times what is new with clearing, {MOST_COMPUTED} at most. "
        f"With a third of the turns edited it is {ratio(found[OFTEN])}."
    )


def _hybrids(reports: Reports) -> str:
    found = [times_fewer(reports[name]) for name in HYBRID_RESULTS]
    if min(found) >= _LEAST_FEWER:
        return ""
    told = " and ".join(map(ratio, found))
    return (
        f"On hybrid models batches with moves compute {told} times fewer tokens than stock in batches. "
        f"The goal was {_LEAST_FEWER}."
    )


def _moves(reports: Reports) -> str:
    found = slowest_move(reports)
    least = share(_LEAST_SPEED)
    return "" if found >= _LEAST_SPEED else f"A move has {share(found)} of the speed of memcpy at worst, not {least}."


def _moves_on_gpu(reports: Reports) -> str:
    found = slowest_of(reports, "fp8")
    least = share(_LEAST_SPEED)
    if found >= _LEAST_SPEED:
        return ""
    return f"On a GPU a move in fp8 has {share(found)} of a copy's bandwidth from 4,096 tokens on, not {least}."


def _folds_on_gpu(reports: Reports) -> str:
    found = fold_appends(reports)
    if max(found) <= MOST_APPENDS_AT_FOLD:
        return ""
    return (
        f"A fold on a GPU takes {ratio(min(found))} to {ratio(max(found))} appends{of_few(reports, FOLD)}, "
        f"{MOST_APPENDS_AT_FOLD} at most: two to four forward passes beside one."
    )


_AUTO, _DRAFTS, _MOVES, _LIMITS = "auto", "drafts", "moves", "limits"
BESIDE = (
    *(BesideBar((name,), partial(auto_after_fold, name=name), _AUTO) for name in KINDS_OF_PROCESSORS),
    BesideBar(("precompute-thoughts", "repairs-thoughts"), _auto_behind_thoughts, _AUTO),
    BesideBar((AUTO_RESULT,), _computed_by_auto, _AUTO),
    *(BesideBar((one.name,), one.missed, _AUTO) for one in AUTO_BARS),
    BesideBar((REPAIRS_RESULT,), _repaired),
    BesideBar((SCALE_TIMES,), missed_at_length),
    BesideBar(PAIRED, _edited_turns),
    BesideBar((DROPPED,), _behind_dropped),
    BesideBar(("speculation",), _drafted, _DRAFTS),
    BesideBar(("speculation-tokens",), lambda reports: too_few_compared(reports["speculation-tokens"]), _DRAFTS),
    BesideBar(tuple(HYBRID_RESULTS), _hybrids),
    BesideBar(("kernel",), _moves, _MOVES),
    BesideBar((GPU_RESULT,), _moves_on_gpu, _MOVES),
    BesideBar((GPU_RESULT,), _folds_on_gpu, _MOVES),
    BesideBar((GPU_RESULT,), overhead_missed, _MOVES),
    BesideBar(("search",), missed_by_searches, _LIMITS),
    BesideBar(("budget-pass",), missed_by_passes, _LIMITS),
)


def beside_lines(reports: Reports) -> list[str]:
    """A line for each topic that misses something, in their order. A bar without a topic is one of its own."""
    topics: dict[object, list[str]] = {}
    for bar in BESIDE:
        told = bar.told(reports) if all(name in reports for name in bar.files) else ""
        topics.setdefault(bar.topic or bar, []).extend([told] if told else [])
    return [" ".join(told) for told in topics.values() if told]
