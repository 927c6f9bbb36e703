"""The sections about agents that run code, and about the maps that they read."""

from __future__ import annotations

from acmserve.bench.agent.result_table import Report
from acmserve.bench.eval.bench import MAP_TOKENS, SMALL_MAP
from acmserve.bench.eval.map_ablations import MAP_ABLATIONS
from acmserve.bench.eval.rlm.loop import NUM_ITERATIONS
from acmserve.bench.eval.table import REPEATS_TABLE, WAY_TABLE
from acmserve.bench.eval.task_evidence import rows_of_all
from acmserve.bench.harness.markdown_text import count, points
from acmserve.bench.report.sections.evaluations.evaluation_section import (
    alike_told,
    contexts_told,
    evaluation_section,
    played_told,
)
from acmserve.context.maps.map import DEFAULT_BUDGET, DEFAULT_EVOLVE_STEPS

AGENT, SHELL, MAPS = "eval-rlm", "eval-terminal", "eval-maps"
_WITH_MAP = "rlm-map"
_OTHER = {"budget", "evolve_steps"}
"""What an ablation may have of its own, beside the numbers of all maps of a run."""


def _agent_answer(report: Report) -> str:
    rows, row = rows_of_all(report["rows"]), _of_map(report)
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
        if row["num_unmet"]:
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


def _maps_alike(report: Report) -> str:
    """Maps that came to the very tokens of others: what they change was never used. "" where none did."""
    told = alike_told(report)
    return told and f"{told} What they change was never used."


def _maps_learn(report: Report) -> str:
    """How large maps are and how long they learn, those of an ablation included."""
    budget = report.get("map", {}).get("budget", DEFAULT_BUDGET)
    names = [way.partition(":")[2] for way in report["ways"] if way.startswith("map:")]
    others = [f"`map:{name}` is {MAP_ABLATIONS[name][0]}." for name in names if _OTHER & MAP_ABLATIONS[name][1].keys()]
    return " ".join([f"A map has {budget:,} tokens.", _agent_map(report), *others])


def _maps_full(report: Report) -> str:
    """Which maps were full. Reports of older runs do not tell it."""
    rows = [row for row in rows_of_all(report["rows"]) if "num_beyond_budget" in row]
    full = [f"`{row['way']}` {row['num_beyond_budget']:,}" for row in rows if row["num_beyond_budget"]]
    if not rows:
        return "This result does not tell which maps were full."
    return f"Items that a budget did not hold: {', '.join(full)}." if full else "No map was full."


EVALUATED_AGENTS = (
    evaluation_section(
        AGENT,
        "An agent with a Python session",
        "Does a context map help the agent of the PEEK paper, and what do its updates cost?",
        "acmserve bench eval --ways rlm rlm-map --tasks oolong --set oolong.questions=8 --samples 4",
        _agent_answer,
        (_agent_steps, _agent_updates, _agent_map, contexts_told, played_told),
    ),
    evaluation_section(
        SHELL,
        "An agent in a shell",
        "Do twenty tasks in one session cost fewer tokens than one by one, and does a budget keep the answers?",
        "acmserve bench eval --code --tasks terminal --samples 8 "
        "--ways shell-isolated shell shell:cwl shell:recency shell:compact",
        _shell_answer,
        (
            _shell_steps,
            "The agent writes commands as text. What they gave are messages of the user, taken for results.",
            "Points and times are beside `shell-isolated`, which has a conversation for each task.",
            "An isolated task has the same prompt in each context. So its answers differ by chance of rounding alone.",
            contexts_told,
            played_told,
        ),
        (WAY_TABLE, REPEATS_TABLE),
    ),
    evaluation_section(
        MAPS,
        "Ablations of the context map",
        "What do the parts of the PEEK paper's map give, and what do they cost?",
        "acmserve bench eval --ways map map:no-eviction map:monolithic map:b256 map:m1 map:m-all --tasks oolong "
        f"--set oolong.questions=8 --samples 2 --map '{SMALL_MAP}'",
        _maps_answer,
        (
            "Each way learns maps of its own, one for each text.",
            _maps_learn,
            "An update whose answer cannot be read teaches nothing, and the next question tries again.",
            _maps_full,
            _maps_alike,
            contexts_told,
            played_told,
        ),
    ),
)
