"""Sections about repaired caches, questions that the repair did not see, and the calibration of a model."""

from __future__ import annotations

from collections.abc import Iterator

from acmserve.bench.agent.result_table import Report
from acmserve.bench.calibrate.bars import BARS, EDITS
from acmserve.bench.calibrate.choice import MAX_LOSS
from acmserve.bench.harness.markdown_text import MET, UNDECIDED, interval, points, share, strong
from acmserve.bench.harness.run_log import duration
from acmserve.bench.repairs import thoughts
from acmserve.bench.repairs.cases import FAMILY_TITLES, SEED_SETS, TRAIN
from acmserve.bench.repairs.recorded import recorded_harm, recorded_kinds, recorded_mix, recorded_row, unfinished
from acmserve.bench.repairs.rule import breach, has_rule_of_today, rule_digest
from acmserve.bench.repairs.summary import (
    ANY,
    HARM_NATS,
    LEAST_ALIKE,
    MAX_KL,
    MIX,
    MOST_LOST,
    SEED,
    WIDEST_INTERVAL,
    control,
    control_failures,
    verdict,
    within_loss,
)
from acmserve.bench.repairs.ways import CONTROL
from acmserve.bench.report.page_section import PageSection, PageTable, Reports, page_table
from acmserve.bench.report.sections.answers import DISTANCE_GROUP
from acmserve.bench.tasks.floor import FLOOR

RESULT, _THOUGHTS, _CALIBRATE = "repairs", "repairs-thoughts", "calibrate"
_WAYS = {"reuse": "`reuse`", "auto": "`auto`", "question's words": "control: words of the question"}
_ROLES = ("asked", "later", "paraphrased")
_JUDGED = (
    f"That it loses {100 * MOST_LOST:.0f} point at most is met where the whole interval says so. "
    f"One wider than {100 * WIDEST_INTERVAL:.0f} points decides nothing, unless all of it is below the bar. "
    f"Where something moved and no case differs, {LEAST_ALIKE} cases are needed. "
    f"The bar of the first screen is another one: the whole interval above -{100 * MAX_LOSS:.0f}."
)
OLDER_RULE = "Measured with an older rule."


def with_rule(report: Report, told: str) -> str:
    """What is told of `auto`, marked where another rule ships today. Nothing is marked where nothing is told."""
    return told if not told or has_rule_of_today(report) else f"{OLDER_RULE} {told}"


def _families(reports: Reports) -> Iterator[list[str]]:
    report = reports[RESULT]
    for task in dict.fromkeys(row["task"] for row in report["summary"]):
        auto, reuse, exact = (recorded_row(report, task, way) for way in ("auto", "reuse", "exact"))
        beside = points(auto["right_beside_exact"], auto["right_beside_exact_interval"])
        kl = f"{auto['kl']:.3f}{interval(auto['kl_interval'], 1, 3)}"
        right, moved = share(exact["right"]), share(auto["moved_share"])
        yield [FAMILY_TITLES.get(task, task), right, beside, within_loss(auto), kl, f"{reuse['kl']:.3f}", moved]


def _kinds(reports: Reports) -> Iterator[list[str]]:
    for way, title in _WAYS.items():
        rows = [recorded_row(reports[RESULT], MIX, way, role) for role in _ROLES]
        yield [title, *(points(row["right_beside_exact"], row["right_beside_exact_interval"]) for row in rows)]


def _chain(reports: Reports) -> Iterator[list[str]]:
    """One row for each way, what it computes of the text that could move included."""
    report = reports[_THOUGHTS]
    for way in dict.fromkeys(row["way"] for row in report["summary"]):
        row, *by_role = _rows(report, way)
        beside = points(row["right_beside_exact"], row["right_beside_exact_interval"])
        every = f"{row['kl']:.3f}{interval(row['kl_interval'], 1, 3)}"
        kl = [f"{other['kl']:.3f}" for other in by_role]
        yield [_WAYS.get(way, way), share(1 - row["moved_share"]), every, *kl, beside]


def _chain_answer(reports: Reports) -> str:
    report = reports[_THOUGHTS]
    moving = list(dict.fromkeys(row["way"] for row in report["summary"]))[1:]
    words = {_WAYS.get(way, way): verdict(_rows(report, way), way, thoughts.TASK) for way in moving}
    passing, undecided = ([way for way, word in words.items() if word == wanted] for wanted in (MET, UNDECIDED))
    auto = recorded_row(report, thoughts.TASK, "auto")
    computed = f"`auto` computes {share(1 - auto['moved_share'])} of what is kept."
    told = f"What passes beside `exact`: {', '.join(passing) or 'nothing'}."
    left = f" Not decided: {', '.join(undecided)}." if undecided else ""
    return with_rule(report, f"{computed} {told}{left}")


def _rows(report: Report, way: str) -> list[Report]:
    """Of chains, over all kinds of question and of each."""
    return [recorded_row(report, thoughts.TASK, way, role) for role in (ANY, *_ROLES)]


def _chain_cases(reports: Reports) -> str:
    return _cases(reports[_THOUGHTS])


def _cases(report: Report) -> str:
    """Which seeds and which rule, whether that was fixed before, and the rule that ships."""
    seeds, rule = report["seeds"], report["rule"]
    is_held_out = seeds != TRAIN
    kind = f"held-out seeds from {SEED_SETS[seeds]:,} on" if is_held_out else "training seeds"
    told = f"The {report['num_cases']} cases have {kind}, and the rule of `auto` was {rule}."
    if wrong := breach(seeds, rule):
        told += f" {strong(wrong)}"
    elif is_held_out:
        told += " [The log](../benchmarks/LOG.md) has that digest from before the run."
    return told + _today(report)


def _today(report: Report) -> str:
    """The rule that ships, where it is another one. Nothing where it is this one."""
    return "" if has_rule_of_today(report) else f" The rule of today is {rule_digest()}, and was not measured here."


def _floor(reports: Reports) -> str:
    out = ", ".join(f"{size} ({share(right)})" for size, right in reports[RESULT]["at_floor"].items())
    few = f"{100 * FLOOR:.0f} %"
    return f"Sizes of which `exact` itself answers less than {few} are out, for they cannot show harm: {out or 'none'}."


def _kinds_out(reports: Reports) -> str:
    """Nothing where every kind counts."""
    report = reports[RESULT]
    told = [f"{kind} questions ({share(right)})" for kind, right in recorded_kinds(report).items()]
    if not told:
        return ""
    auto = recorded_row(report, MIX, "auto")
    return (
        f"For the same reason these are in no mean over kinds of question: {', '.join(told)}. The mix has "
        f"{auto['num_cases']} cases and {auto['num_questions']} other questions."
    )


def _harm(reports: Reports) -> str:
    harm = recorded_harm(reports[RESULT])
    return with_rule(
        reports[RESULT],
        f"`auto` is worse than `reuse` by more than {HARM_NATS} nats in {harm['num_edits_harmed']} of "
        f"{harm['num_edits']} edits, by {harm['worst_edit_nats']:.3f} at most. So it is in "
        f"{harm['num_questions_harmed']} of {harm['num_questions']} single questions.",
    )


def _control(reports: Reports) -> str:
    """With the difference to `reuse`, since what is lost on later questions may be lost by any move."""
    mix = recorded_mix(reports[RESULT])
    rows = [recorded_row(reports[RESULT], MIX, CONTROL.name, role) for role in _ROLES[:2]]
    asked, later = (points(row["right_beside_exact"]) for row in rows)
    gained = control(mix, SEED)
    beside = " and ".join(points(gained[role], gained[f"{role}_interval"]) for role in _ROLES[:2])
    failures = control_failures(mix, SEED)
    caught = f" **By today's rule the control is not caught**: {'. '.join(failures)}." if failures else ""
    return (
        f"The control computes what has words in common with the first question. Beside `exact` it has {asked} points "
        f"on that question and {later} on later ones. Beside `reuse` these are {beside}. "
        f"With one question a cache it would look good.{caught}"
    )


def _stopped(reports: Reports) -> str:
    """Nothing where every case was run that was planned."""
    report = reports[RESULT]
    less = unfinished(report)
    if not less:
        return ""
    lost = sum(planned - run for run, planned in less.values())
    told = ", ".join(f"{FAMILY_TITLES.get(task, task)} ({run} of {planned})" for task, (run, planned) in less.items())
    return (
        f"The run was stopped before its end, with {report['num_cases']} of {report['num_cases'] + lost} cases. "
        f"Fewer than were planned have: {told}. Their intervals are wider for that."
    )


def _rule(reports: Reports) -> str:
    return _cases(reports[RESULT])


def _calibrated(reports: Reports) -> str:
    report = reports[_CALIBRATE]
    met = sum(bar["is_met"] for bar in report["bars"])
    return (
        f"It took {duration(report['seconds'])} and chose the level `{report['level']}`. Updates as in PI-LLM get: "
        f"{report['verdict']}. Of {len(report['bars'])} bars {met} are met."
    )


def _unjudged(reports: Reports) -> str:
    out = ", ".join(reports[_CALIBRATE]["at_floor"])
    return (
        "Sizes and kinds of question of which `exact` itself answers less than "
        f"{100 * FLOOR:.0f} % are out, for they cannot show harm: {out or 'none'}."
    )


REPAIRS = (
    PageSection(
        "Fidelity: repaired caches",
        "Is a repaired cache right for a question that the repair did not see?",
        "acmserve bench repairs --cases 12",
        "Receipts add up. All questions of a way find one cache. The control is caught.",
        (RESULT,),
        (
            PageTable(
                (
                    "family",
                    "right under `exact`",
                    "`auto` beside it, points",
                    f"loses {100 * MOST_LOST:.0f} point at most",
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
            _JUDGED,
            _floor,
            _kinds_out,
            _control,
            "The model has 135M parameters, and all thresholds of `auto` were set on it.",
        ),
        is_optional=True,
        answer=_harm,
        group=DISTANCE_GROUP,
    ),
    PageSection(
        "Fidelity: a chain of dropped thoughts",
        "Does a cheap repair keep the answers, when a template drops the reasoning of a tool chain?",
        'acmserve bench repairs --family "chain of thoughts" --cases 12 --seeds train --cheap',
        "Receipts add up. All questions of a way find one cache.",
        (_THOUGHTS,),
        (PageTable(("way", "computed", "KL, nats", *_ROLES, "right beside `exact`, points"), _chain),),
        (
            _chain_cases,
            f"A way passes with {MAX_KL} nats and {100 * MOST_LOST:.0f} point lost at most, for each kind of question.",
            "Points are judged by the interval, as those of repaired caches.",
            "Pieces that are too short to move are computed under every way.",
        ),
        is_optional=True,
        answer=_chain_answer,
        group=DISTANCE_GROUP,
    ),
    PageSection(
        "Fidelity: the calibration of a model",
        "How long does `acmserve calibrate` take, and does it find that updates of values cannot be moved?",
        "acmserve bench calibrate",
        "The command ends without an error. What was served is what was asked for.",
        (_CALIBRATE,),
        (page_table(BARS, _CALIBRATE), page_table(EDITS, _CALIBRATE)),
        (
            "A repair passes with at most 0.1 nats and two points lost, and where one edit in fifty is worse at most.",
            _unjudged,
            "The model's files were on the disk already.",
        ),
        is_optional=True,
        answer=_calibrated,
        group=DISTANCE_GROUP,
    ),
)
