"""Sections about what a move does to distributions and to answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from acmserve.bench.agent.result_table import Report
from acmserve.bench.harness.markdown_text import points, share
from acmserve.bench.report.page_section import PageSection, PageTable, Reports
from acmserve.bench.tasks.auto import Traded, trade
from acmserve.bench.tasks.cases import TASKS
from acmserve.bench.tasks.floor import FLOOR, above_floor, at_floor
from acmserve.bench.tasks.moved_answers import MovedAnswers, count_moved_answers
from acmserve.bench.tasks.run import AUTO, EXACT, TOKEN_EXACT
from acmserve.bench.tasks.summary import ALL, recorded_row

_SERVED = {
    "reuse": "`reuse`",
    "repair-128": "`repair`, 128 tokens",
    "auto": "`auto`",
    "full": "for scale: not folded",
}
_TASKS = {"pi-llm": "PI-LLM", "unrelated": "unrelated text", "all": "all of them"}
DISTANCE_GROUP = "Distances of distributions, and repaired caches"
SEEDS = ("tasks", "tasks-seed2", "tasks-seed3")
_NUMBERS = {1: "one seed", 2: "two seeds", 3: "three seeds"}
REPAIRED = {True: "echoes alone", False: "heads, too"}
"""What `auto` repaired. A result of these tasks tells no more of its rule."""


def repairs_echoes_alone(report: Report) -> bool:
    """Whether `auto` repaired echoes alone when this was measured, and no heads. Which rule ships it does not tell."""
    return any(variant["name"] == TOKEN_EXACT.name for variant in report["variants"])


def reports_by_rule(reports: Iterable[Report]) -> dict[bool, list[Report]]:
    """By whether `auto` repaired echoes alone, which comes first."""
    held = list(reports)
    found = {alone: [one for one in held if repairs_echoes_alone(one) is alone] for alone in (True, False)}
    return {alone: some for alone, some in found.items() if some}


def answers_by_rule(reports: Iterable[Report]) -> dict[bool, MovedAnswers]:
    """What `auto` lost and won, of all files of a rule together."""
    return {alone: moved_answers(some) for alone, some in reports_by_rule(reports).items()}


def named(alone: bool) -> str:
    """`auto`, with what it repaired."""
    return f"`auto` ({REPAIRED[alone]})"


def moved_answers(reports: Iterable[Report]) -> MovedAnswers:
    """Of `auto`, over some files."""
    return count_moved_answers((record for report in reports for record in report["records"]), AUTO)


def _judged(report: Report) -> Traded:
    """What `auto` did in sizes above the floor."""
    kept = above_floor(report["records"])
    return trade(kept, [record["variants"][AUTO] for record in kept])


def _tasks_of(report: Report) -> list[str]:
    there = {record["task"] for record in above_floor(report["records"])}
    return [task for task in TASKS if task in there]


def _served(reports: Reports) -> Iterator[list[str]]:
    for variant, title in _SERVED.items():
        row = recorded_row(reports["tasks"], ALL, variant)
        told = named(repairs_echoes_alone(reports["tasks"])) if variant == AUTO else title
        yield [
            told,
            points(row["right_beside_exact"], row["right_beside_exact_interval"]),
            *_where_moved(row),
            share(row["moved_share"]),
        ]


def _where_moved(row: Report) -> tuple[str, str]:
    """Points, and of how many folds. Nothing where nothing moved."""
    if row["where_moved_beside_exact"] is None:
        return "", ""
    told = points(row["where_moved_beside_exact"], row["where_moved_beside_exact_interval"])
    return told, f"{row['num_moved_cases']} of {row['num_cases']}"


def _tasks(reports: Reports) -> Iterator[list[str]]:
    report = reports["tasks"]
    for task in (*_tasks_of(report), ALL):
        exact, auto, reuse = (recorded_row(report, task, variant) for variant in (EXACT, AUTO, "reuse"))
        cells = [points(row["right_beside_exact"], row["right_beside_exact_interval"]) for row in (reuse, auto)]
        right, moved = share(exact["right"]), share(auto["moved_share"])
        yield [_TASKS.get(task, task), str(exact["num_questions"]), right, *cells, *_where_moved(auto), moved]


def _seeds(reports: Reports) -> Iterator[list[str]]:
    for name in SEEDS:
        report = reports[name]
        found = moved_answers([report])
        rule = REPAIRED[repairs_echoes_alone(report)]
        moved = f"{found.num_moved_cases} of {found.num_cases}"
        share_moved = share(_judged(report).moved_share)
        yield [str(report["seed"]), rule, moved, found.lost, found.won, _worst_task(report), share_moved]


def _worst_task(report: Report) -> str:
    """Of those in which something moved: what was computed exactly loses nothing."""
    rows = [recorded_row(report, task, AUTO) for task in _tasks_of(report)]
    moved = [row for row in rows if row["num_moved_cases"]]
    if not moved:
        return "none"
    worst = min(moved, key=lambda row: float(row["right_beside_exact"]))
    return f"{_TASKS.get(worst['task'], worst['task'])}, {points(worst['right_beside_exact'])} points"


def _floor(reports: Reports) -> str:
    """Which sizes are out, and how many cases of each file that is."""
    out = ", ".join(f"{size} ({share(right)})" for size, right in at_floor(reports["tasks"]["records"]).items())
    counts = [
        f"{len(records) - len(above_floor(records))} of {len(records)}"
        for records in (reports[name]["records"] for name in SEEDS)
    ]
    return (
        f"Sizes of which `exact` itself answers less than {share(FLOOR)} are out, for they cannot show harm. Seed by "
        f"seed these are {', '.join(counts)} folds. With seed 1 the sizes are {out or 'none'}."
    )


def _drawn(reports: Reports) -> str:
    return "" if "at_floor" in reports["tasks"] else "The picture has all sizes, those that are out, too."


def _lost(reports: Reports) -> str:
    """Of each rule, that of echoes alone first."""
    (alone, first), *others = answers_by_rule(reports[name] for name in SEEDS).items()
    told = [f"Where {named(alone)} moved, it lost {first.lost} right answers and won {first.won} wrong ones."]
    told += [f"{named(one)} lost {found.lost} and won {found.won}." for one, found in others]
    return " ".join([*told, "A net gain is no promise."])


def _counted(reports: Reports) -> str:
    """How many answers could be lost or won at all."""
    told = []
    for alone, some in reports_by_rule(reports[name] for name in SEEDS).items():
        found = moved_answers(some)
        folds = f"{found.num_moved_cases} of {found.num_cases} folds"
        told.append(
            f"Over {_NUMBERS[len(some)]} {named(alone)} moved something in {folds}. "
            f"The other {found.num_exact} of {found.num_questions} answers were computed exactly."
        )
    return " ".join(told)


def _unmoved(reports: Reports) -> str:
    """The tasks in which a rule moved nothing at all."""
    told = []
    for alone, some in reports_by_rule(reports[name] for name in SEEDS).items():
        records = [record for report in some for record in report["records"]]
        tasks = list(dict.fromkeys(record["task"] for record in records))
        moved = {record["task"] for record in records if record["variants"][AUTO]["moved_tokens"]}
        still = [_TASKS.get(task, task) for task in tasks if task not in moved]
        if still:
            told.append(f"{named(alone)} moves nothing in {len(still)} of {len(tasks)} tasks: {', '.join(still)}")
    return f"{'. '.join(told)}. There it is `exact`." if told else ""


def _missed(reports: Reports) -> str:
    """Of echoes alone, where that was measured."""
    alone, some = next(iter(reports_by_rule(reports[name] for name in SEEDS).items()))
    found = [_judged(report) for report in some]
    harmful, missed = sum(one.num_harmful for one in found), sum(one.num_missed for one in found)
    needless, cases = sum(one.num_needless for one in found), sum(one.num_cases for one in found)
    return (
        f"Over {_NUMBERS[len(some)]} `reuse` harms {harmful} of {cases} folds. {named(alone)} "
        f"missed {missed} of them, and computed {needless} of the other {cases - harmful} needlessly."
    )


ANSWERS = (
    PageSection(
        "Fidelity: answers",
        "What does a move do to answers on five generated tasks?",
        "acmserve bench tasks --seed 1 --cases 45",
        "Receipts add up. `exact` moved nothing, and `reuse` what it could. `auto` chose what its rule says.",
        SEEDS,
        (
            PageTable(
                (
                    *("fidelity", "right beside `exact`, points", "the same where it moved"),
                    *("folds where it moved", "moved"),
                ),
                _served,
                "Seed 1.",
            ),
            PageTable(
                (
                    *("task", "questions", "right under `exact`", "`reuse`, points", "`auto`, points"),
                    *("the same where it moved", "folds where it moved", "moved by `auto`"),
                ),
                _tasks,
                "The same by task.",
            ),
            PageTable(
                (
                    *(
                        "seed",
                        "`auto` repaired",
                        "folds in which `auto` moved",
                        "lost of right answers there",
                        "won of wrong ones",
                    ),
                    *("its worst task where it moved", "moved"),
                ),
                _seeds,
                "All three seeds, the last two with `--cases 14`. Folds and answers are of all sizes.",
            ),
        ),
        (
            _floor,
            _missed,
            _counted,
            _unmoved,
            "`repair` of 128 tokens answers as well here and moves more. Nobody compared their distances to `exact`.",
            "`auto` (heads, too) was exact where much was removed.",
            "No digest of the rule was recorded with these files. So they do not tell whether it ships.",
            "The model has 135M parameters, and all thresholds of `auto` were set on it.",
            _drawn,
        ),
        "tasks.png",
        answer=_lost,
    ),
)
