"""The section about a model that learns to fold. It stands on the page once `make train` ran."""

from __future__ import annotations

from collections.abc import Iterator

from acmserve.bench.report.page_section import PageSection, PageTable, Reports

RESULT = "learner"
_MODELS = {
    "untrained": "as it was",
    "right": "trained on right folds",
    "shuffled": "the control, trained on folds of wrong documents",
}


def _models(reports: Reports) -> Iterator[list[str]]:
    for row in reports[RESULT]["rows"]:
        low, high = row["reward_interval"]
        num, calls = row["num_tasks"], f"{row['num_valid_calls']} of {row['num_calls']}"
        counts = [f"{row[name]} of {num}" for name in ("within_limit", "right_answers")]
        reward = f"{row['reward']:.2f} ({low:.2f} to {high:.2f})"
        yield [_MODELS[row["model"]], reward, *counts, calls, str(row["folds_per_task"])]


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


LEARNING = (
    PageSection(
        "A model that decides",
        "Does a small model that was trained on exported rollouts fold where it helps, when nobody asks it to?",
        "acmserve bench learner",
        "The reward of right folds lies above the untrained model's interval, and above the control's.",
        (RESULT,),
        (
            PageTable(
                ("SmolLM2-135M", "reward (95 %)", "within the limit", "right answers", "valid calls", "folds a task"),
                _models,
            ),
        ),
        (
            _sizes,
            _losses,
            "Held-out tasks have other seeds, names and sentences. The reward is Equation 4 of the Sculptor paper.",
            "Supervised training on a scripted policy alone. No reinforcement learning was run on top.",
        ),
        is_optional=True,
    ),
)
