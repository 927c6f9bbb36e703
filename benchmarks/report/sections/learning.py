"""The section about a model that learns to fold. It stands on the page once `make train` ran."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from acmserve.bench.learner.answers import ALL, KEEP, answers_part
from acmserve.bench.learner.sessions import MAX_ANSWER_TOKENS
from acmserve.bench.learner.tasks import SAID_TOKENS
from acmserve.bench.report.page_section import PageSection, PageTable, Reports

RESULT = "learner"
_SAID_BEFORE = 70
"""Tokens that runs left to a turn which do not say so."""
_MODELS = {
    "untrained": "as it was",
    "right": "trained on right folds",
    "shuffled": "the control, trained on wrong folds",
}
_PARTS = {"fold": "that need folds", "keep": "that need none", "all": "all"}


def _models(reports: Reports) -> Iterator[list[str]]:
    for row in reports[RESULT]["rows"]:
        for name, told in _PARTS.items():
            earned, *counts = _cells(row["parts"][name])
            yield [_MODELS[row["model"]], told, earned, f"{answers_part(row, name)[0]:.2f}", *counts]


def _cells(part: dict[str, Any]) -> list[str]:
    low, high = part["reward_interval"]
    num, calls = part["num_tasks"], f"{part['num_valid_calls']} of {part['num_calls']}"
    counts = [f"{part[name]} of {num}" for name in ("within_limit", "right_answers")]
    decisions = f"{part['num_right_decisions']} of {part['num_decisions']}"
    return [f"{part['reward']:.2f} ({low:.2f} to {high:.2f})", *counts, calls, str(part["folds_per_task"]), decisions]


def _reward(reports: Reports) -> str:
    told = {row["model"]: f"{row['parts']['all']['reward']:.2f}" for row in reports[RESULT]["rows"]}
    answers = f"{answers_part(_row(reports, 'untrained'), ALL)[0]:.2f}"
    return (
        f"Yes. Over all tasks the trained model earns {told['right']}, and the control, which says as little, "
        f"{told['shuffled']}. Untrained it earns {told['untrained']}, or {answers} by answers alone."
    )


def _row(reports: Reports, model: str) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in reports[RESULT]["rows"] if row["model"] == model)
    return found


def _wordy(reports: Reports) -> str:
    """Why the untrained model is no fair baseline."""
    row = _row(reports, "untrained")
    keep = row["parts"][KEEP]
    num, earned = keep["num_tasks"], answers_part(row, KEEP)[0]
    return (
        f"By answers alone a session without calls may say what it likes where no fold is needed. Untrained, the model "
        f"breaks the limit of {num - keep['within_limit']} of {num} such tasks, since it says more than `ok`. By "
        f"answers alone it earns {earned:.2f} there."
    )


def _limits(reports: Reports) -> str:
    """Files of older runs do not say what their limit left."""
    said = reports[RESULT].get("said_tokens", _SAID_BEFORE)
    if said >= SAID_TOKENS:
        return f"Where no fold is needed, the limit has room for answers of {MAX_ANSWER_TOKENS} tokens in each turn."
    return (
        f"Its limit left {said} tokens to a turn besides its document, and an answer may have {MAX_ANSWER_TOKENS}. "
        f"Later runs leave {SAID_TOKENS}, so that the longest answer fits."
    )


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
    return f"The loss of a sampled token fell from {'. It fell from '.join(told)}."


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
        "Where no fold helps, it does not fall task by task. The control stands beside it by reward, and the untrained "
        "model by answers alone. The servers say what the weights say.",
        (RESULT,),
        (
            PageTable(
                (
                    *(
                        "SmolLM2-135M",
                        "tasks",
                        "reward (95 %)",
                        "by answers alone",
                        "within the limit",
                        "right answers",
                    ),
                    *("valid calls", "folds a task", "right decisions"),
                ),
                _models,
            ),
        ),
        (
            _sizes,
            _wordy,
            _limits,
            _losses,
            _agreement,
            _minutes,
            "Held-out tasks have other seeds, names and sentences. The reward is Equation 4 of the Sculptor paper.",
            "A decision is whether a document is folded once it is read.",
            "Who folds always, or never, earns 0 at most, and less where its words break a limit.",
            "Intervals are Wilson's, so that equal rewards have a width, too.",
            "Supervised training on a scripted policy alone. No reinforcement learning was run on top.",
        ),
        "learner.png",
        is_optional=True,
        answer=_reward,
        group="A model that was trained to fold, where nobody asks it to",
    ),
)
