"""The scorers against reference values: those that the tasks' own repositories publish, or give when they are run.

Each list has answers that the scorer has to refuse, and that a kinder scorer takes.
"""

from __future__ import annotations

import pytest

from acmserve.bench.eval.tasks import (
    babilong,
    frames,
    gsm_infinite,
    longbench,
    mrcr,
    needlebench,
    oolong,
    oolong_real,
    pi_llm,
)

LAST = {"tools": "manual mill", "European place": "Gabrovo", "sport": "motorsport", "Tech": "Vodafone"}
SAID = "".join(f"The current value of {key} is {value}.\n" for key, value in LAST.items())
LISTED = "".join(f"*   {key}: {value}\n" for key, value in LAST.items())


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
        ("", 0.0),
    ],
)
def test_pi_llm_scores_the_share_of_last_values(answer: str, score: float) -> None:
    assert pi_llm.share_of_values(answer, LAST) == pytest.approx(score, abs=1e-6)


TEXT = "abcd"
LONG = "the cat sat on the mat and the dog sat on the log " * 6


@pytest.mark.parametrize(
    ("answer", "gold", "score"),
    [
        ("K7abcd", "K7abcd", 1.0),
        ("K7bcde", "K7abcd", 0.75),  # the value of Python's own manual for these two texts
        (" K7abcd", "K7abcd", 0.0),
        ("Here it is: K7abcd", "K7abcd", 0.0),
        ("abcd", "K7abcd", 0.0),
        ("K7", "K7abcd", 0.0),
        ("K7abcd and more of it", "K7abcd", 8 / 23),
    ],
)
def test_mrcr_scores_as_its_data_set(answer: str, gold: str, score: float) -> None:
    assert mrcr.score_v1(answer, gold, "K7") == pytest.approx(score, abs=1e-6)


def test_the_ratio_is_that_with_the_heuristic_for_frequent_characters() -> None:
    """difflib without it gives another value here, so a scorer that turns it off is found."""
    other = LONG.replace("dog", "cow")
    assert mrcr.score_v1(f"K7{other}", f"K7{LONG}", "K7") == pytest.approx(0.103333333, abs=1e-6)


HASH = "AbCd1234EfGh"


@pytest.mark.parametrize(
    ("answer", "strict", "lenient"),
    [
        (f"{HASH}expected answer", 1.0, 1.0),
        (f"preface {HASH}expected answer", 0.0, 1.0),
        (f"preface {HASH}wrong answer {HASH}expected answer", 0.0, 1.0),
        (f"{HASH}wrong answer {HASH}expected answer", 1.0, 1.0),
        (f"  {HASH} expected answer \n", 1.0, 1.0),
        ("expected answer", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_mrcr_v2_scores_as_its_repository(answer: str, strict: float, lenient: float) -> None:
    gold = f"{HASH}expected answer"
    assert mrcr.score_v2(answer, gold) == pytest.approx(strict, abs=1e-6)
    assert mrcr.score_v2(answer, gold, is_lenient=True) == pytest.approx(lenient, abs=1e-6)


@pytest.mark.parametrize(
    ("answer", "gold", "kind", "score"),
    [
        ("Answer: 7", "[7]", oolong.NUMERIC, 1.0),
        ("Answer: 9", "[7]", oolong.NUMERIC, 0.75**2),
        ("I count them. **Answer: [4]**", "[7]", oolong.NUMERIC, 0.75**3),
        ("Answer: seven", "[7]", oolong.NUMERIC, 0.0),
        ("7", "[7]", oolong.NUMERIC, 1.0),
        ("There are many of them, about 7", "[7]", oolong.NUMERIC, 1.0),
        ("Label: tree", "['tree']", oolong.LABEL, 1.0),
        ("Label: Tree", "['tree']", oolong.LABEL, 0.0),
        ("Answer: tree is more common than stone", "['more common than']", oolong.COMPARISON, 1.0),
        ("Answer: tree is less common than stone", "['more common than']", oolong.COMPARISON, 0.0),
        ("User: 48211", "[48211]", oolong.USER, 1.0),
        ("Date: Jul 06, 2024", "[datetime.date(2024, 7, 6)]", oolong.DATE, 1.0),
        ("Date: 2024-07-07", "[datetime.date(2024, 7, 6)]", oolong.DATE, 0.0),
    ],
)
def test_oolong_scores_as_its_repository(answer: str, gold: str, kind: str, score: float) -> None:
    assert oolong.score(answer, gold, kind) == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize(
    ("answer", "gold", "score"),
    [
        ("In all \\boxed{84}.", "84", 1.0),
        ("\\boxed{81}", "84", 0.75**3),
        ("\\boxed{\\text{84}}", "84", 1.0),
        ("\\boxed{{84}}", "84", 1.0),
        ("\\boxed{80} and then \\boxed{84}", "84", 0.75**4),  # the first box
        ("\\boxed{about 84}", "84", 0.0),
        ("84", "84", 0.0),  # without a box no number is read
        ("\\boxed{Fjord, Caleb}", "Caleb, Fjord, Jester", 2 / 3),
        ("\\boxed{Fjord, Caleb, Beau, Nott}", "Caleb, Fjord", 1.0),  # more than asked costs nothing there
        ("\\boxed{fjord, caleb}", "Caleb, Fjord", 0.0),  # of several texts the case counts
        ("\\boxed{Fjord}", "Caleb, Fjord", 0.0),
        ("\\boxed{ fire bolt }", "Fire Bolt", 1.0),
        ("Fire Bolt", "fire bolt", 1.0),
        ("It is Fire Bolt", "Fire Bolt", 0.0),
        ("", "Fire Bolt", 0.0),
    ],
)
def test_oolong_scores_its_transcripts_as_its_repository(answer: str, gold: str, score: float) -> None:
    assert oolong_real.score(answer, gold) == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("The most recent location of Mina is garden.", 1.0),
        ("Garden. Not the kitchen.", 1.0),
        ("garden or kitchen", 0.0),
        ("office", 0.0),
        ("", 0.0),
    ],
)
def test_babilong_takes_the_right_label_alone(answer: str, score: float) -> None:
    assert babilong.label_score(answer, "garden", "Where is Mina?", babilong.LABELS["qa1"]) == score


def test_babilong_passes_over_labels_of_the_question() -> None:
    asked = "Where was the milk before the kitchen?"
    assert babilong.label_score("before the kitchen it was in the office", "office", asked, babilong.LABELS["qa3"]) == 1
    assert babilong.label_score("it was in the kitchen", "office", asked, babilong.LABELS["qa3"]) == 0


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("So it is \\boxed{Una Moss}.", 1.0),
        ("\\boxed{Ada Quill}, no: \\boxed{Una Moss}", 1.0),
        ("\\boxed{\\text{Una Moss}}", 1.0),
        ("\\boxed{{Una Moss}}", 1.0),
        ("Una Moss", 0.0),
        ("\\boxed{Una}", 0.0),
        ("\\boxed{una moss}", 0.0),
    ],
)
def test_needlebench_takes_the_name_in_the_box(answer: str, score: float) -> None:
    assert needlebench.name_score(answer, "Una Moss") == score


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("Answer: 19.", 19),
        ("3 plus 16. Answer: 19", 19),
        ("so \\boxed{19}", 19),
        ("**Answer:** 19.", 19),
        ("The sum is 12. Hence the total is 19.", 19),
        ("Answer: nineteen.", None),
        ("", None),
    ],
)
def test_gsm_infinite_reads_numbers_as_its_repository(answer: str, number: int | None) -> None:
    assert gsm_infinite.read_number(answer) == number


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("The correct answer is (B)", "B"),
        ("**The correct answer is B**", "B"),
        ("B", None),
        ("The answer is (B)", None),
        ("the correct answer is (B)", None),
    ],
)
def test_longbench_reads_the_letter_as_its_repository(answer: str, letter: str | None) -> None:
    assert longbench.read_letter(answer) == letter


@pytest.mark.parametrize(
    ("answer", "score"), [("In Birch.", 1.0), ("the BIRCH", 1.0), ("Birchwood", 0.0), ("Elm", 0.0), ("", 0.0)]
)
def test_frames_takes_whole_words(answer: str, score: float) -> None:
    assert frames.holds(answer, "Birch") == score
