"""The sections about right answers on the papers' tasks, one for each model that was asked."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from acmserve.bench.agent.result_table import Report
from acmserve.bench.eval.summary import ALL
from acmserve.bench.eval.table import TABLES, told
from acmserve.bench.eval.task_evidence import (
    GAIN,
    LOSS,
    NOTHING,
    WHOLE,
    WayDifference,
    best_of,
    compare_ways,
    differences_of,
    is_idle,
    over_budget,
    rows_of_all,
    shown_by_task,
    told_apart,
    within_budget,
    worst_of,
)
from acmserve.bench.report.sections.evaluations.evaluated_agents import EVALUATED_AGENTS
from acmserve.bench.report.sections.evaluations.evaluation_section import (
    Note,
    alike_told,
    contexts_told,
    evaluation_section,
    played_told,
)
from acmserve.context.maps.map import DEFAULT_EVOLVE_STEPS

BUNDLED, LEARNED = "eval", "eval-learner"
_MAP = "map"
_NEAR_THE_BOUND = 0.9
"""Of the bound of an answer. Where the mean is above it, answers may have been cut. At the bound all were."""


def can_show(report: Report) -> str:
    """Of how many tasks a loss or a gain can show on this model."""
    shown = list(shown_by_task(report["rows"]).values())
    loss, gain, nothing = (shown.count(kind) or "none" for kind in (LOSS, GAIN, NOTHING))
    return f"Of {len(shown)} tasks {loss} can show a loss on this model, {gain} a gain alone, {nothing} nothing."


def _answer(report: Report) -> str:
    """What the tasks can show on this model, and the ways that differ most, over all tasks and where they can lose."""
    rows, said = report["rows"], [can_show(report)]
    if idle := [f"`{row['way']}`" for row in rows_of_all(rows) if is_idle(row)]:
        said.append(f"The model never calls the tools of {', '.join(idle)}, so nothing is edited there.")
    ways, losing = (told_apart(found, rows) for found in (differences_of(rows), compare_ways(rows)))
    met = within_budget(ways, rows)
    can_lose = {one.way for one in losing}
    able = [one for one in ways if one.way in can_lose]
    best, worst, most = best_of(met), worst_of(able), worst_of(losing)
    if best is not None:
        said.append(f"Over all that a way plays, {told(best)} points is the best of {len(met)} ways.")
        said += [_left_out(len(ways) - len(met))] if met != ways else []
        said += [f"The worst of {len(able)} that can lose is {told(worst)}."] if worst else []
        said.append(_beyond(ways, can_lose))
    if most is None:
        said.append("No way can be seen to lose or to keep answers.")
    else:
        said.append(f"Where a way can lose, the worst of {len(losing)} is {told(most)}.")
        beyond = _beyond(losing, can_lose)
        said += [beyond] if beyond != _beyond(ways, can_lose) else []
    return " ".join([*said, "One of twenty such differences is chance."])


def _beyond(ways: Sequence[WayDifference], can_lose: Collection[str]) -> str:
    """The ways whose interval has no zero in it. Those whose tasks can show no loss are told apart."""
    known = [(one.way, *one.interval) for one in ways if one.interval]
    loses, guesses = (
        [f"`{way}`" for way, _, high in known if high < 0 and (way in can_lose) is can] for can in (True, False)
    )
    gains = [f"`{way}`" for way, low, _ in known if low > 0]
    said = [f"Below zero by their intervals: {', '.join(loses)}."] if loses else []
    said += [f"Of tasks that can show no loss: {', '.join(guesses)}."] if guesses else []
    said += [f"Above zero: {', '.join(gains)}."] if gains else []
    return " ".join(said) or "Zero lies in each interval."


def _left_out(num: int) -> str:
    """How many ways cannot be the best."""
    return f"{'One is' if num == 1 else f'{num} are'} left out, over budget in most samples of a task."


def _budgets(report: Report) -> str:
    """Ways whose scores are no scores under their budgets, by name. Budgets that are alike."""
    over = ", ".join(f"`{way}`" for way in over_budget(report["rows"]))
    said = ["Budgets that a policy could not meet stand in the last column."]
    if over:
        said.append(f"Over budget in more than half of the samples of a task, so never the best: {over}.")
    if alike := alike_told(report):
        said += [alike, "They count as one. The histories here give them nothing to differ in."]
    return " ".join(said)


def _floor(report: Report) -> str:
    """Which tasks say nothing or little, in plain words."""
    shown = shown_by_task(report["rows"])
    nothing, gain = ([f"`{task}`" for task, one in shown.items() if one == kind] for kind in (NOTHING, GAIN))
    said = []
    if nothing:
        said.append(f"No way gets more than 5 % right of {', '.join(nothing)}, which show nothing.")
    if gain:
        said.append(f"With the whole context {', '.join(gain)} are not clearly above 5 % and a guess, so show no loss.")
    return " ".join(said) or "In every task the whole context is better than a guess, and than 5 %."


def _length(report: Report) -> str:
    """How short the contexts are."""
    (whole,) = (row for row in rows_of_all(report["rows"]) if row["way"] == WHOLE)
    mean = whole["prompt_tokens"] / whole["num_samples"]
    return (
        f"A prompt with the whole context has {mean:,.0f} tokens on average, short for the sake of a small model. "
        "So the words of tools weigh more here than what an edit saves."
    )


def _seen(report: Report) -> str:
    """How much of a text two ways have at once. A report without limits is of a run with those of the papers."""
    if "limits" not in report:
        return "`rag` and `memagent` saw the whole text here, which is shorter than what they take at once."
    retrieved, part = report["limits"]["retrieved"], report["limits"]["part"]
    return (
        f"`rag` sees about {retrieved:,} words of a text. `memagent` reads parts of {part:,} tokens. "
        f"Its memory has {report['max_tokens']:,} tokens at most, as an answer has."
    )


def _map_seen(report: Report) -> str:
    """What the way `map` is played on, where it is. It learns from the first questions about a text."""
    found = [row for row in rows_of_all(report["rows"]) if row["way"] == _MAP and row.get("num_contexts")]
    if not found:
        return "A map is learned from the first four questions about a text."
    (row,) = found
    each = row["num_samples"] / row["num_contexts"]
    if not sum(row["update_tokens"] or ()):
        return f"No update of `{_MAP}` was made in this run. So its questions read an empty map, at no cost."
    read = f"`{_MAP}` has {each:.3g} questions about a text, and learns from the first {DEFAULT_EVOLVE_STEPS}."
    if each > DEFAULT_EVOLVE_STEPS:
        return read
    return f"{read} So its cost is that of learning, and no question reads a finished map."


def _cut(report: Report) -> str:
    """In which tasks answers end at their bound, with the whole context. Older results tell their tokens alone."""
    bound = report["max_tokens"]
    rows = [row for row in report["rows"] if row["way"] == WHOLE and row["task"] != ALL]
    counted = [f"`{row['task']}` {row['num_cut']} of {row['num_samples']}" for row in rows if row.get("num_cut")]
    long = [
        f"`{row['task']}` {row['output_tokens'] / row['num_requests']:.0f}"
        for row in rows
        if "num_cut" not in row and row["output_tokens"] > _NEAR_THE_BOUND * bound * row["num_requests"]
    ]
    said = [f"An answer has at most {bound} tokens."]
    if counted:
        said.append(f"With the whole context answers were cut at {bound} tokens: {', '.join(counted)}.")
    if long:
        said.append(f"With the whole context answers come close to that, by their mean: {', '.join(long)}.")
    return " ".join(said)


_OF_TASKS: tuple[Note, ...] = (
    "Samples are generated from words of our own. So scores compare ways, and not models or papers.",
    _cut,
    _floor,
    "A guess picks among the choices that a question names. A difference of zeros has an interval of no width.",
    contexts_told,
    _length,
    _budgets,
    "`clear_tool_uses` keeps all calls, which are long beside the results of a short text.",
    _seen,
    _map_seen,
    played_told,
    "Tasks, ways and scorers: [Evaluation](guides/evaluation.md).",
)
"""Of a model that plays all tasks."""

EVALUATION = (
    evaluation_section(
        BUNDLED,
        "Evaluation",
        "Do edited contexts give right answers, on the papers' own tasks, and at what cost?",
        "acmserve bench eval",
        _answer,
        _OF_TASKS,
        TABLES,
        group="",
    ),
    evaluation_section(
        LEARNED,
        "Evaluation of a model that was trained",
        "And with a model that has learned to fold?",
        "make eval-learner",
        _answer,
        _OF_TASKS,
        TABLES,
    ),
    *EVALUATED_AGENTS,
)
