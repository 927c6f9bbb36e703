"""Sections about budgets over one long session of many tasks. Each stands on the page once its plan was made."""

from __future__ import annotations

from acmserve.bench.report.page_section import PageSection, Reports, page_table
from acmserve.bench.sweep.computed import BLOCK_TOKENS
from acmserve.bench.sweep.rows import POLICIES
from acmserve.bench.sweep.table import BUDGET_REPEATS, BUDGET_TOKENS, whole_session

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
        return " ".join(told)

    return PageSection(
        title,
        "What do budgets of three sizes cost over one session of many tasks, and what is explored again?",
        command,
        "No prompt above its budget. Every budget is exceeded without a policy. All ways have the same calls.",
        (name,),
        (page_table(BUDGET_TOKENS, name), page_table(BUDGET_REPEATS, name)),
        (
            tasks,
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


SWEEPS = tuple(_section(name, *about) for name, about in _SWEEPS.items())
