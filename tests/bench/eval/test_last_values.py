"""What the scorer of PI-LLM reads, against the published one.

Source: zhuangziGiantfish/Unable-to-Forget, commit 3534274880727d2bad5cbd2b850923ee5a683a1c. The answers are ours. The
values are those that `extract_pieces_response_to_dict` of core/pi_flow_upgrade.py and `compute_accuracy` of
core/analysis_helper.py give when they are run on them.
"""

from __future__ import annotations

import math
import time

import pytest

from acmserve.bench.eval.tasks import pi_llm
from acmserve.bench.eval.tasks.last_values import read_values
from acmserve.bench.eval.tasks.registry import TASKS, make_samples

LAST = {"tools": "manual mill", "European place": "Gabrovo", "sport": "motorsport", "Tech": "Vodafone"}
SAID = "".join(f"The current value of {key} is {value}.\n" for key, value in LAST.items())
LISTED = "".join(f"*   {key}: {value}\n" for key, value in LAST.items())
LONG = "x " * 400
NONE = math.nan
"""The published accuracy of what is no answer."""


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (SAID, 1.0),
        (LISTED, 0.0),
        (f"The latest values are:\n{LISTED}", 1.0),
        (f"{LISTED}\n{SAID}", 1.0),
        (SAID.replace("manual mill", "MANUAL MILL"), 1.0),
        (SAID.replace("Gabrovo", "Koper"), 0.75),
        (LISTED.replace("Gabrovo", "Koper") + SAID, 1.0),
        (SAID.partition("\n")[0], 0.25),
        (SAID + "The current value of sport is offshore racing.", 0.75),
        ("Sorry, I cannot tell.", 0.0),
    ],
)
def test_the_score_is_the_share_of_last_values(answer: str, score: float) -> None:
    assert pi_llm.share_of_values(answer, LAST) == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize(
    "answer",
    [
        "sport: The last seen value is motorsport.",
        "sport - the final term was motorsport",
        "The last term for sport is motorsport.",
        "The value of the key 'sport' is 'motorsport'",
        "the latest value with the category [sport] was: [motorsport];",
        "The most recent value paired with sport is motorsport.",
        "THE CURRENT VALUE OF sport IS MOTORSPORT.",
        "The current value of \\sport is \\motorsport.",
        "**The current value of sport is motorsport**",
        "The current value of sport is motorsport, not golf.",
        "The current value of sport is golf. The current value of sport is motorsport.",
        "The current value of sport is motorsport\nDone.",
        "The current value of European place is Gabrovo.",
        "the last values:\n- sport: motorsport\n- Tech: Voda-fone",
        'the last values:\n"sport": "motorsport",',
        "the last values:\nsport: golf\nThe current value of sport is motorsport.",
        "There are errors. The current value of sport is motorsport.",
        f"No error here. {LONG}The current value of sport is motorsport.",
    ],
)
def test_one_value_is_read(answer: str) -> None:
    assert pi_llm.share_of_values(answer, LAST) == pytest.approx(0.25, abs=1e-6)


@pytest.mark.parametrize(
    "answer",
    [
        "The current value of Sport is motorsport.",
        "The current value of \\text{sport} is \\text{motorsport}.",
        "The current value of sport is motor-sport.",
        "The current value of sport is motorsport and golf.",
        "The current value of sport is motorsport!",
        "The current value of sport is now motorsport.",
        "The newest value of sport is motorsport.",
        "The current value of European  place is Gabrovo.",
        "the last values:\nsport: motorsport (team)",
        "the last values:\n`sport`: `motorsport`",
        "the values:\nsport: motorsport",
        "The current value of sport is golf.\nsport: motorsport",
        "   ",
    ],
)
def test_no_value_is_read(answer: str) -> None:
    assert pi_llm.share_of_values(answer, LAST) == pytest.approx(0.0, abs=1e-6)


def test_a_value_with_a_hyphen_is_not_read_though_it_is_the_right_one() -> None:
    said = "The current value of sport is cyclo-cross."
    assert pi_llm.share_of_values(said, {"sport": "cyclo-cross"}) == 0
    assert pi_llm.share_of_values(said, {"sport": "cyclo"}) == 0


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "Error: the current value of sport is motorsport.",
        "There is an error. The current value of sport is motorsport.",
        f"error code 7. {LONG}The current value of sport is motorsport.",
    ],
)
def test_what_is_no_answer_is_left_out_of_the_published_mean_and_scores_nothing_here(answer: str) -> None:
    assert pi_llm.share_of_values(answer, LAST) == pytest.approx(NONE, nan_ok=True)
    (sample,) = make_samples(TASKS["pi-llm"], 1, 0, {"keys": (2,), "updates": (2,)})
    assert TASKS["pi-llm"].score(sample, answer) == 0.0


@pytest.mark.parametrize("gap", [" ", "\n", "\t \n"])
def test_a_model_that_writes_blanks_for_ever_is_read_at_once(gap: str) -> None:
    """Tried at each place, four gaps in a row would take hours for such an answer."""
    began = time.thread_time()
    answer = f"{SAID}the current value of{gap * 2_000}the value of {gap * 2_000}\nThe current value of bug is{gap}moth."
    assert read_values(answer) is not None
    assert pi_llm.share_of_values(answer, LAST | {"bug": "moth"}) == 1
    assert time.thread_time() - began < 10
