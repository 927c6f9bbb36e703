"""Sections about budgets over one long session of many tasks. Each stands on the page once its plan was made."""

from __future__ import annotations

from acmserve.bench.agent.result_table import Report
from acmserve.bench.budget.costs import COMPACTION
from acmserve.bench.harness.markdown_text import listed, share
from acmserve.bench.report.page_section import PageSection, Reports, page_table
from acmserve.bench.sweep.computed import BLOCK_TOKENS
from acmserve.bench.sweep.cwl_claims import (
    PAPER,
    baseline_told,
    budget_costs,
    compaction_told,
    prices_told,
    summary_sizes,
    sweep_costs,
    with_answers_told,
)
from acmserve.bench.sweep.rows import LOW_SHARE, POLICIES
from acmserve.bench.sweep.table import BUDGET_REPEATS, BUDGET_TOKENS, whole_session
from acmserve.bench.trace.compaction import SUMMARY_TOKENS

_GROUP = "One long session under budgets of 50,000 to 120,000 tokens, planned"
_SWEEPS = {
    "sweep": ("Many tasks in one session", "acmserve bench sweep", "The tasks are the scripted agent's."),
    "sweep-real": (
        "Real agents in one session",
        "acmserve bench sweep --traces agentperf",
        "The conversations are those of the PyPI package agentperf-local. All have the first one's instructions.",
    ),
}


def _section(name: str, title: str, command: str, tasks: str) -> PageSection:
    def answer(reports: Reports) -> str:
        report = reports[name]
        whole = whole_session(report)
        told = [f"Without a budget {report['num_tasks']} tasks compute {whole['exact_tokens']:,} tokens under `exact`."]
        for row in report["rows"]:
            if row["policy"] == POLICIES[0]:
                repeats = row["num_repeats_shown"] + row["num_reexplored"]
                told.append(
                    f"With CWL and {row['max_tokens']:,} it is {row['exact_tokens']:,}, and {row['reuse_tokens']:,} "
                    f"under `reuse`. Of {repeats} repeated calls {row['num_reexplored']} are re-explorations there."
                )
        return " ".join([*told, *_claims(report)])

    return PageSection(
        title,
        "What do budgets of three sizes cost over one session of many tasks, and what is explored again?",
        command,
        "No prompt above its budget. Every budget is exceeded without a policy. All ways have the same calls.",
        (name, "budget"),
        (page_table(BUDGET_TOKENS, name), page_table(BUDGET_REPEATS, name)),
        (
            tasks,
            lambda reports: _why(reports[name], reports["budget"]),
            lambda reports: _invented(reports[name]),
            "No engine runs. Prompts are planned, and the product forecasts what it computes. The pool is never full.",
            f"Stock vLLM keeps whole blocks of {BLOCK_TOKENS} tokens, as on a GPU.",
            "A repeat has the name and arguments of an earlier call. Whether its text had changed is not known.",
            "A recorded agent saw everything, so it had less reason to ask again than one under a budget.",
            "CWL's paper tells up to three times less cost at 50,000 than above 120,000, and more re-exploration.",
        ),
        is_optional=True,
        answer=answer,
        group=_GROUP,
    )


def _claims(report: Report) -> list[str]:
    """What the paper tells, beside what CWL costs at each budget."""
    told = [
        f"Beside a summary of {size:,} tokens it costs {compaction_told(found)}."
        for size in summary_sizes(report)
        if (found := sweep_costs(report, size))
    ]
    return [
        PAPER,
        f"By budget CWL costs {baseline_told(sweep_costs(report))}.",
        *told,
        with_answers_told(sweep_costs(report, with_answers=True), SUMMARY_TOKENS),
    ]


def _invented(report: Report) -> str:
    """What the summaries are. Their size decides what a summary costs."""
    sizes = listed([f"{size:,}" for size in summary_sizes(report)], "or")
    return f"Summaries are invented: the beginnings of the messages that they stand for, {sizes} tokens at most."


def _why(report: Report, other: Report) -> str:
    """Why `bench budget` says another thing of compaction, and at which prices both do."""
    (batched,) = budget_costs(other, "cwl-batched")
    num = next(run["num_summaries"] for run in other["runs"] if run["name"] == COMPACTION)
    cwl, summary = (
        next(row for row in report["rows"] if row["policy"] == policy and row["max_tokens"])
        for policy in (POLICIES[0], POLICIES[-1])
    )
    prompts, summaries = (f"{row['prompt_tokens']:,}" for row in (cwl, summary))
    return (
        f"Beside a summary only the first and the last step stay. CWL leaves up to {share(LOW_SHARE)} of a budget. "
        f"At {cwl['max_tokens']:,} the prompts of CWL have {prompts} tokens, and those of summaries {summaries}. "
        f"Under [Budgets](#budgets) CWL costs {batched.below_compaction} than compaction, whose {num} summaries each "
        f"leave as much as CWL does. {prices_told(report)}"
    )


SWEEPS = tuple(_section(name, *about) for name, about in _SWEEPS.items())
