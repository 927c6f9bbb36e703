"""The gate of `bench learner`: each comparison can go red by itself. What it compares is made of played sessions."""

from __future__ import annotations

import copy
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from acmserve.bench.agent.estimates import bounded_interval, wilson
from acmserve.bench.harness.options import as_gate, as_json
from acmserve.bench.learner.agreement import TokenAgreement, compare_tokens
from acmserve.bench.learner.answers import ALL, FOLD, KEEP, answers_part, by_answers
from acmserve.bench.learner.gate import find_failures
from acmserve.bench.learner.judged import JudgedModel
from acmserve.bench.learner.main import as_table
from acmserve.bench.learner.sessions import PlayedSession, read_session, session_line
from acmserve.bench.learner.stages import TrainedModel
from acmserve.bench.report.ledger import read_ledger
from acmserve.bench.report.page import sections_of
from acmserve.bench.report.sections.learning import LEARNING, RESULT
from acmserve.bench.report.sections.renewed import renewed
from acmserve.training.record import read_rollout
from tests.support.docs.figures import read_result
from tests.support.training.sessions import Session

NUM = 20


def session(seed: int, needs_fold: bool, reward: float, *, is_right: bool | None = None) -> PlayedSession:
    """Right where it won, unless something else is said."""
    folds = (0, 1) if needs_fold and reward > 0 else ()
    needed = (0, 1) if needs_fold else ()
    calls = 2 * len(folds)
    violation = "tokens" if reward < 0 else None
    return PlayedSession(
        *(seed, needs_fold, 3, reward, violation, reward > 0 if is_right is None else is_right),
        *(calls, calls, 0, folds, needed, 500, 600, ""),
    )


def row(name: str, fold: tuple[int, int], keep: int, num_other: int = 0, *, num_wordy: int = 0) -> dict[str, Any]:
    """`fold` and `keep`: how many of `NUM` tasks of each kind are won, and how many are merely not lost.

    Of those that need no fold the last `num_wordy` have right answers and too many words.
    """
    won, drawn = fold
    folding = [1.0] * won + [0.0] * drawn + [-1.0] * (NUM - won - drawn)
    keeping = [1.0] * keep + [0.0] * (NUM - keep)
    sessions = [session(seed, True, reward) for seed, reward in enumerate(folding)]
    wordy = range(NUM - num_wordy, NUM)
    sessions += [session(seed, False, reward) for seed, reward in enumerate(keeping) if seed not in wordy]
    sessions += [session(seed, False, -1.0, is_right=True) for seed in wordy]
    model = TrainedModel(name, Path(name), () if name == "untrained" else (1.2, 0.05))
    return JudgedModel(model, tuple(sessions), TokenAgreement(400, num_other)).as_row()


UNTRAINED, RIGHT, CONTROL = row("untrained", (0, 0), 14), row("right", (19, 0), 18), row("shuffled", (0, 12), 17)


def test_a_model_that_learned_where_to_fold_is_green() -> None:
    assert find_failures([UNTRAINED, RIGHT, CONTROL]) == []


WORDY = row("untrained", (0, 0), 3, num_wordy=14)
"""Right in 17 of 20 tasks that need no fold, as the model was that is on record. It earns -1 for its words."""


@pytest.mark.parametrize("num_lost", [5, 12, NUM])
def test_a_model_that_loses_tasks_without_folds_is_red(num_lost: int) -> None:
    """Beside an untrained model that breaks the limit with its words, too: that one earned less than nothing."""
    lost = row("right", (20, 0), NUM - num_lost)
    whole = row("shuffled", (0, 12), NUM)
    failures = find_failures([WORDY, lost, whole])
    assert any(re.search("the shuffled .*: it fell where no fold helps", failure) for failure in failures), failures
    assert find_failures([WORDY, row("right", (20, 0), NUM - 1), whole]) == []


def test_a_model_that_says_less_and_answers_less_is_red() -> None:
    """The control fell as it did, and by rewards it rose. Right answers of the untrained model stand against it."""
    failures = find_failures([WORDY, row("right", (20, 0), 6), row("shuffled", (0, 12), 6)])
    (told,) = (failure for failure in failures if "it fell where no fold helps" in failure)
    assert told.startswith("by answers alone the trained model earns 0.30 on keep tasks, the untrained 0.85")


def test_words_cost_nothing_by_answers_alone_and_calls_do() -> None:
    assert by_answers(session(1, False, -1.0, is_right=True).as_dict()) == 1.0
    assert by_answers(session(1, False, -1.0, is_right=False).as_dict()) == 0.0
    assert by_answers(session(1, True, -1.0, is_right=True).as_dict()) == -1.0, "documents alone break its limit"
    called = session(1, False, -1.0, is_right=True).as_dict()
    assert by_answers(called | {"num_calls": 2}) == -1.0, "a needless call may have broken it"
    assert by_answers(called | {"violation": "format_error"}) == -1.0
    assert [round(answers_part(WORDY, part)[0], 3) for part in (KEEP, FOLD, ALL)] == [0.85, -1.0, -0.075]


def test_the_recorded_gate_is_green_and_red_without_what_it_kept() -> None:
    rows = copy.deepcopy(read_result(RESULT)["rows"])
    assert find_failures(rows) == []
    (trained,) = (row for row in rows if row["model"] == "right")
    for one in trained["sessions"]:
        if not one["needs_fold"]:
            one |= {"reward": -1.0, "is_right": False, "violation": "tokens"}
    assert len([line for line in find_failures(rows) if "it fell where no fold helps" in line]) == 2
    assert not renewed(RESULT, {"gate": as_gate([]), "rows": rows})["gate"]["green"], "no page shows it"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((UNTRAINED, row("right", (2, 0), 20), CONTROL), "on fold tasks the trained model earns .*, the untrained"),
        ((row("untrained", (15, 5), 20), row("right", (19, 1), 20), CONTROL), "on all tasks the trained model"),
        ((UNTRAINED, RIGHT, row("shuffled", (18, 0), 18)), "the shuffled .*: the control rose as it did"),
        ((row("untrained", (0, 0), NUM), row("right", (20, 0), 0), CONTROL), "it fell where no fold helps"),
        ((UNTRAINED, row("right", (9, 0), 8), CONTROL), "and who decides nothing 0"),
        ((UNTRAINED, row("right", (19, 0), 18, num_other=3), CONTROL), "right: the server said 3 of 400 tokens"),
    ],
)
def test_each_comparison_goes_red(rows: tuple[dict[str, Any], ...], said: str) -> None:
    failures = find_failures(rows)
    assert any(re.search(said, failure) for failure in failures), failures


def test_equal_rewards_have_a_width() -> None:
    assert bounded_interval([1.0] * NUM, -1.0, 1.0) == [round(2 * wilson(1.0, NUM)[0] - 1, 4), 1.0]
    assert bounded_interval([-1.0] * NUM, -1.0, 1.0) == [-1.0, round(2 * wilson(0.0, NUM)[1] - 1, 4)]
    mixed = bounded_interval([1.0] * 15 + [-1.0] * 5, -1.0, 1.0)
    assert mixed == [round(2 * edge - 1, 4) for edge in wilson(0.75, NUM)]
    low, high = bounded_interval([0.0] * NUM, -1.0, 1.0)
    assert low < -0.3
    assert high > 0.3


def test_a_session_survives_its_file() -> None:
    one = session(4, True, 1.0)
    assert read_session(session_line(one)) == one
    assert one.num_right_decisions == 3
    assert session(4, True, -1.0).num_right_decisions == 1


def test_the_page_and_the_table_show_every_model(tmp_path: Path) -> None:
    rows = [UNTRAINED, RIGHT, CONTROL]
    report = {
        "machine": {"cores": 2, "cpu": "a processor"},
        "gate": as_gate(find_failures(rows)),
        "training_tasks": 48,
        "steps": 24,
        "learning_rate": 2e-4,
        "tasks": 40,
        "minutes_at_most": {"rollouts": 2.0, "training right": 10.4},
        "rows": rows,
    }
    assert as_table(report)[-1].startswith("gate green")
    assert as_table(report | {"gate": as_gate(["the control rose"])})[-1] == "  the control rose"
    (tmp_path / f"{RESULT}.json").write_text(as_json(report), encoding="utf-8")
    shown = "\n".join(sections_of(LEARNING, tmp_path, read_ledger(tmp_path)))
    assert (
        "| trained on right folds | that need folds | 0.90 (0.53 to 0.98) | 0.90 | 19 of 20 | 19 of 20 | 76 of 76 |"
        in shown
    )
    assert "Its limit left 70 tokens" in shown, "a file that does not say what its limit left"
    assert "The loss of a sampled token fell from 1.20 to 0.050 (trained on right folds). It fell from" in shown
    assert "Of 1200 tokens that the servers said, 1200 are those" in shown
    assert "The whole command took 12 minutes of wall clock on 2 cores of a processor" in shown


def test_a_token_that_the_weights_do_not_say_is_found() -> None:
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=2000, num_attention_heads=2, num_key_value_heads=1, **sizes))
    played = Session(random.Random(3))
    context = [played.text()]
    for _ in range(2):
        one = played.serve(context, parent=len(played.completions) - 1 if played.completions else None, num_tokens=4)
        for place in range(4):
            said = model(input_ids=torch.tensor([one.sequence[: len(one.prompt) + place]])).logits[0, -1]
            one.token_ids[place] = int(said.argmax())
        context += [one.token_ids, played.text()]
    assert compare_tokens(model, read_rollout(played.record())) == TokenAgreement(8, 0)
    played.completions[-1].token_ids[-1] += 1
    assert compare_tokens(model, read_rollout(played.record())) == TokenAgreement(8, 1)
