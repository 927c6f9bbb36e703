"""The section about a model that learns to fold. It stands on the page once `make train` ran."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from acmserve.bench.report.page_section import PageSection, PageTable, Reports

RESULT = "learner"
_MODELS = {
    "untrained": "as it was",
    "right": "trained on right folds",
    "shuffled": "the control, trained on folds of wrong documents",
}
_PARTS = {"fold": "that need folds", "keep": "that need none", "all": "all"}


def _models(reports: Reports) -> Iterator[list[str]]:
    for row in reports[RESULT]["rows"]:
        for name, told in _PARTS.items():
            yield [_MODELS[row["model"]], told, *_cells(row["parts"][name])]


def _cells(part: dict[str, Any]) -> list[str]:
    low, high = part["reward_interval"]
    num, calls = part["num_tasks"], f"{part['num_valid_calls']} of {part['num_calls']}"
    counts = [f"{part[name]} of {num}" for name in ("within_limit", "right_answers")]
    decisions = f"{part['num_right_decisions']} of {part['num_decisions']}"
    return [f"{part['reward']:.2f} ({low:.2f} to {high:.2f})", *counts, calls, str(part["folds_per_task"]), decisions]


def _reward(reports: Reports) -> str:
    told = [f"{row['parts']['all']['reward']:.2f} ({_MODELS[row['model']]})" for row in reports[RESULT]["rows"]]
    return f"The reward is {told[0]}. Then it is {', and '.join(told[1:])}."


def _sizes(reports: Reports) -> str:
    report = reports[RESULT]
    steps = f"{report['steps']} steps of four rows, at a rate of {report['learning_rate']:g} at most"
    return f"Trained on {report['training_tasks']} scripted sessions: {steps}."


def _losses(reports: Reports) -> str:
    told = [
        f"{row['losses'][0]:.2f} to {row['losses'][-1]:.3f} ({_MODELS[row['model']]})"
        for row in reports[RESULT]["rows"]
        if row["losses"]
    ]
    return f"The loss of a sampled token fell from {', and from '.join(told)}."


def _agreement(reports: Reports) -> str:
    said = [row["agreement"] for row in reports[RESULT]["rows"]]
    num, other = (sum(one[name] for one in said) for name in ("num_tokens", "num_other"))
    return f"Of {num} tokens that the servers said, {num - other} are those that transformers finds likeliest."


def _minutes(reports: Reports) -> str:
    report = reports[RESULT]
    minutes, machine = sum(report["minutes_at_most"].values()), report["machine"]
    where = f"{machine['cores']} cores of {machine['cpu']}"
    return f"The whole command took {minutes:.0f} minutes of wall clock on {where}, while other work ran there."


LEARNING = (
    PageSection(
        "A model that decides",
        "Does a small model that was trained on exported rollouts fold where it helps, when nobody asks it to?",
        "acmserve bench learner",
        "The reward of right folds lies above the untrained model's interval, above the control's, and above 0. "
        "It does not fall where no fold helps. The servers say what the weights say.",
        (RESULT,),
        (
            PageTable(
                (
                    *("SmolLM2-135M", "tasks", "reward (95 %)", "within the limit", "right answers", "valid calls"),
                    *("folds a task", "right decisions"),
                ),
                _models,
            ),
        ),
        (
            _sizes,
            _losses,
            _agreement,
            _minutes,
            "Held-out tasks have other seeds, names and sentences. The reward is Equation 4 of the Sculptor paper.",
            "A decision is whether a document is folded once it is read. Who folds always, or never, earns 0 at most.",
            "Intervals are Wilson's, so that equal rewards have a width, too.",
            "Supervised training on a scripted policy alone. No reinforcement learning was run on top.",
        ),
        "learner.png",
        is_optional=True,
        answer=_reward,
    ),
)
