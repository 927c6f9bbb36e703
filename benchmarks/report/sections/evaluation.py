"""The sections about right answers on the papers' tasks, one for each model that was asked."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from acmserve.bench.agent.result_table import Report
from acmserve.bench.eval.bench import MAP_TOKENS
from acmserve.bench.eval.rlm.loop import NUM_ITERATIONS
from acmserve.bench.eval.summary import GROUPED_TASKS
from acmserve.bench.eval.table import REPEATS_TABLE, TABLES, WAY_TABLE, told
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
    rows_of_all,
    shown_by_task,
    worst_of,
)
from acmserve.bench.harness.markdown_text import count, points
from acmserve.bench.report.page_section import PageSection, Reports, page_table
from acmserve.context.maps.map import DEFAULT_EVOLVE_STEPS

BUNDLED, LEARNED, AGENT, SHELL, MAPS = "eval", "eval-learner", "eval-rlm", "eval-terminal", "eval-maps"
_GROUP = "Evaluation of a model that was trained, and of an agent that runs code"
_MAP, _WITH_MAP = "map", "rlm-map"
_UNDER_BUDGET = "shell:cwl"


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
    ways, losing = differences_of(rows), compare_ways(rows)
    can_lose = {one.way for one in losing}
    able = [one for one in ways if one.way in can_lose]
    best, worst, most = best_of(ways), worst_of(able), worst_of(losing)
    if best is not None:
        said.append(f"Over all that a way plays, {told(best)} points is the best of {len(ways)} ways.")
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


def _played(report: Report) -> str:
    played, planned = report["num_played"], report["num_planned"]
    if played == planned:
        return f"All {planned:,} samples in ways were played."
    return f"Time was up behind {played:,} of {planned:,} samples in ways, one more context for each setting at a time."


def _contexts(report: Report) -> str:
    """What an interval is over. Older reports count each question as a case of its own."""
    if all("num_contexts" in row for row in report["rows"]):
        return "Intervals are over contexts: questions about one context count as one observation."
    tasks = ", ".join(f"`{task}`" for task in shown_by_task(report["rows"]) if task in GROUPED_TASKS)
    return (
        "Intervals of this result take questions about one context as independent"
        f"{f', so those of {tasks} are too narrow' if tasks else ''}."
    )


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
    read = f"`{_MAP}` has {each:.3g} questions about a text, and learns from the first {DEFAULT_EVOLVE_STEPS}."
    if each > DEFAULT_EVOLVE_STEPS:
        return read
    return f"{read} So its cost is that of learning, and no question reads a finished map."


def _section(name: str, title: str, question: str, command: str, group: str = "") -> PageSection:
    def of(report: Reports) -> Report:
        return report[name]

    return PageSection(
        title,
        question,
        command,
        "No request was refused.",
        (name,),
        tuple(page_table(table, name) for table in TABLES),
        (
            "Samples are generated from words of our own. So scores compare ways, and not models or papers.",
            lambda reports: f"An answer has at most {of(reports)['max_tokens']} tokens, so a long list is cut.",
            lambda reports: _floor(of(reports)),
            "A guess picks among the choices that a question names. A difference of zeros has an interval of no width.",
            lambda reports: _contexts(of(reports)),
            lambda reports: _length(of(reports)),
            "Budgets that a policy could not meet stand in the last column.",
            "`clear_tool_uses` keeps all calls, which are long beside the results of a short text.",
            lambda reports: _seen(of(reports)),
            lambda reports: _map_seen(of(reports)),
            lambda reports: _played(of(reports)),
            "Tasks, ways and scorers: [Evaluation](guides/evaluation.md).",
        ),
        is_optional=True,
        answer=lambda reports: _answer(of(reports)),
        group=group,
    )


def _agent_answer(reports: Reports) -> str:
    rows = rows_of_all(reports[AGENT]["rows"])
    row = _of_map(reports[AGENT])
    num, updates = row["num_samples"], sum(row["update_tokens"] or ())
    texts = f" about {row['num_contexts']} texts" if "num_contexts" in row else ""
    return (
        f"Over {num} questions{texts}, each in a session of its own, the map changes right answers by "
        f"{points(row['difference'], row['difference_interval'])} points. "
        f"Its updates read and write {count(round(updates / num))} tokens a question, beside "
        f"{count(round((row['prompt_tokens'] + row['output_tokens']) / num))} of the agent's own requests."
        f"{'' if any(one['score'] for one in rows) else ' No way has a right answer, so no gain can be seen.'}"
    )


def _agent_updates(report: Report) -> str:
    """How often questions taught their maps. A report without that number is of a run that ended them by prose, too."""
    row = _of_map(report)
    if "num_updates" not in row:
        told = "This result does not tell how often it was updated. Iterations in prose updated it, too."
    else:
        told = f"Behind {row['num_samples']} questions the number of updates is {count(row['num_updates'])}."
        if row["num_updates"] and row["update_tokens"][1] == MAP_TOKENS * row["num_updates"]:
            # A Distiller that ends its answer is followed by the Cartographer, which writes some more.
            told += f" Each was cut at {MAP_TOKENS} tokens and could not be read, so the maps stayed empty."
    return f"All questions about a text share one map. {told}"


def _agent_map(report: Report) -> str:
    """When a map stops to learn."""
    steps = report.get("map", {}).get("evolve_steps", DEFAULT_EVOLVE_STEPS)
    return f"A map learns until {steps} updates have counted. One whose Distiller cannot be read does not count."


def _of_map(report: Report) -> Report:
    (row,) = (one for one in rows_of_all(report["rows"]) if one["way"] == _WITH_MAP)
    return row


def _agent_steps(report: Report) -> str:
    """How much the agent may do. A report without limits is of a run whose steps were as short as an answer."""
    limits = {"steps": NUM_ITERATIONS, "step_tokens": 0} | report.get("limits", {})
    steps, tokens = limits["steps"] or NUM_ITERATIONS, max(limits["step_tokens"], report["max_tokens"])
    return (
        f"The agent looks at the text by code, for {steps} iterations at most, of {tokens:,} tokens each. "
        "The text never stands in its prompt."
    )


def _shell_answer(report: Report) -> str:
    """What one session and its budget change. A report that was cut off may lack a way."""
    said = []
    for row in rows_of_all(report["rows"]):
        num = row["num_samples"]
        shown = (
            f"{100 * row['score']:.1f} % of {num} tasks, {count(round(row['computed_tokens'] / num))} computed tokens"
        )
        said.append(f"`{row['way']}` solves {shown} for each.")
        if row["way"] == _UNDER_BUDGET and row["num_unmet"]:
            said.append(f"Its budget was not met in {row['num_unmet']} tasks.")
    return " ".join(said)


def _shell_steps(report: Report) -> str:
    limits = report["limits"]
    return (
        f"Each task has {limits['steps']} steps of {limits['step_tokens']} tokens, and a step shows "
        f"{limits['printed']:,} characters. So all twenty fit the window of the model without a budget."
    )


def _maps_answer(report: Report) -> str:
    """What updates cost beside those of the default map, and what is right."""
    rows = rows_of_all(report["rows"])
    right = " ".join(f"`{row['way']}` is right in {100 * row['score']:.1f} %." for row in rows)
    spent = [(sum(row["update_tokens"] or ()) / row["num_samples"], row["way"]) for row in rows]
    (least, cheapest), (most, dearest) = min(spent), max(spent)
    return (
        f"{right} Updates read and write {count(round(least))} tokens a question with `{cheapest}`, the least, "
        f"and {count(round(most))} with `{dearest}`, the most."
    )


EVALUATION = (
    _section(
        BUNDLED,
        "Evaluation",
        "Do edited contexts give right answers, on the papers' own tasks, and at what cost?",
        "acmserve bench eval",
    ),
    _section(
        LEARNED,
        "Evaluation of a model that was trained",
        "And with a model that has learned to fold?",
        "make eval-learner",
        _GROUP,
    ),
    PageSection(
        "An agent with a Python session",
        "Does a context map help the agent of the PEEK paper, and what do its updates cost?",
        "acmserve bench eval --ways rlm rlm-map --tasks oolong --set oolong.questions=8 --samples 4",
        "No request was refused.",
        (AGENT,),
        (page_table(WAY_TABLE, AGENT),),
        (
            lambda reports: _agent_steps(reports[AGENT]),
            lambda reports: _agent_updates(reports[AGENT]),
            lambda reports: _agent_map(reports[AGENT]),
            lambda reports: _contexts(reports[AGENT]),
            lambda reports: _played(reports[AGENT]),
        ),
        is_optional=True,
        answer=_agent_answer,
        group=_GROUP,
    ),
    PageSection(
        "An agent in a shell",
        "Do twenty tasks in one session cost fewer tokens than one by one, and does a budget keep the answers?",
        "acmserve bench eval --code --tasks terminal --ways shell-isolated shell shell:cwl --samples 8",
        "No request was refused.",
        (SHELL,),
        (page_table(WAY_TABLE, SHELL), page_table(REPEATS_TABLE, SHELL)),
        (
            lambda reports: _shell_steps(reports[SHELL]),
            "The agent writes commands as text. What they gave are messages of the user, taken for results.",
            "Points and times are beside `shell-isolated`, which has a conversation for each task.",
            "An isolated task has the same prompt in each context. So its answers differ by chance of rounding alone.",
            lambda reports: _contexts(reports[SHELL]),
            lambda reports: _played(reports[SHELL]),
        ),
        is_optional=True,
        answer=lambda reports: _shell_answer(reports[SHELL]),
        group=_GROUP,
    ),
    PageSection(
        "Ablations of the context map",
        "What do the parts of the PEEK paper's map give, and what do they cost?",
        "acmserve bench eval --ways map map:no-eviction map:monolithic map:b512 map:b2048 map:m1 --tasks oolong "
        "--set oolong.questions=8 --samples 2",
        "No request was refused.",
        (MAPS,),
        (page_table(WAY_TABLE, MAPS),),
        (
            "Each way learns a map of its own from the first four questions about a text, and `map:m1` from the first.",
            "An update whose answer cannot be read teaches nothing, and the next question tries again.",
            lambda reports: _contexts(reports[MAPS]),
            lambda reports: _played(reports[MAPS]),
        ),
        is_optional=True,
        answer=lambda reports: _maps_answer(reports[MAPS]),
        group=_GROUP,
    ),
)
