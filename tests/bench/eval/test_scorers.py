"""The scorers against reference values: those that the tasks' own repositories publish, or give when they are run.

Each list has answers that the scorer has to refuse, and that a kinder scorer takes. Each test names its source. That of
PI-LLM has a file of its own.
"""

from __future__ import annotations

from difflib import SequenceMatcher

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
)

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
        ("K7oak trunk", "K7oak tree", 12 / 17),  # 0.706
    ],
)
def test_mrcr_scores_as_its_data_set(answer: str, gold: str, score: float) -> None:
    """Derived by hand from the published definition, `grade` in the README of the data set openai/mrcr.

    The prefix is taken off both texts, to the byte, and the rest has the ratio of difflib.
    """
    assert mrcr.score_v1(answer, gold, "K7") == pytest.approx(score, abs=1e-6)


def test_a_prefix_is_no_part_of_the_ratio() -> None:
    """The published score is 0.706, as `oak tr` stands in both texts: 2 * 6 of their 17 characters.

    A likeness that left the prefix on both had 2 * 12 of 29, which is 0.828, and took a space in front of it. The texts
    are ours, and the two values are those that a review of the likeness has told.
    """
    prefix, said, gold = "4KXw2c", "oak trunk", "oak tree"
    assert mrcr.score_v1(prefix + said, prefix + gold, prefix) == pytest.approx(0.705882353, abs=1e-6)
    assert SequenceMatcher(None, prefix + said, prefix + gold).ratio() == pytest.approx(0.827586207, abs=1e-6)
    assert mrcr.score_v1(f" {prefix}{said}", prefix + gold, prefix) == 0


def test_the_ratio_is_that_with_the_heuristic_for_frequent_characters() -> None:
    """By hand, from Python's difflib. Without it another value comes, so a scorer that turns it off is found."""
    other = LONG.replace("dog", "cow")
    assert mrcr.score_v1(f"K7{other}", f"K7{LONG}", "K7") == pytest.approx(0.103333333, abs=1e-6)


HASH = "AbCd1234EfGh"
JULY_6 = "[datetime.date(2024, 7, 6)]"


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
    """Source: google-deepmind/eval_hub, commit 0713b13fc9656caf5f27b0bfd9b397eed8130ae2, run_evaluation_test.py of
    eval_hub/mrcr_v2: the first three rows, by both of its metrics. The others by hand from its docstring.
    """
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
        ("Date: Jul 06, 2024", JULY_6, oolong.DATE, 1.0),
        ("Date: 2024-07-07", JULY_6, oolong.DATE, 0.0),
        ("There are many of them, I count seven", "[7]", oolong.NUMERIC, 0.0),
        ("Answer: 7", "[None]", oolong.NUMERIC, 0.0),
    ],
)
def test_oolong_scores_as_its_repository(answer: str, gold: str, kind: str, score: float) -> None:
    """Source: abertsch72/oolong, src/eval/eval_helpers.py, commit 606e5384f1f3eb370bf0ea168888e76d05379be4.

    The values of `synth_process_response` when it is run, with dateutil 4.0.0.
    """
    assert oolong.score(answer, gold, kind) == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize("blanks", [" " * 20, "\n" * 400, "", " " * 19])
def test_an_answer_of_blanks_scores_nothing(blanks: str) -> None:
    """By hand: the published scorer has no value for twenty of them and more, since it fails with an error."""
    for gold, kind in (("[7]", oolong.NUMERIC), ("['tree']", oolong.LABEL), (JULY_6, oolong.DATE)):
        assert oolong.score(blanks, gold, kind) == 0


@pytest.mark.parametrize("num_zeros", [308, 309, 310, 5_000])
@pytest.mark.parametrize("sign", ["", "-"])
def test_a_number_that_no_float_holds_scores_nothing_in_both_splits(num_zeros: int, sign: str) -> None:
    """By hand, from 0.75 to the power of the distance. The published scorer of transcripts fails with an error."""
    digits = f"{sign}1{'0' * num_zeros}"
    assert oolong_real.score(f"\\boxed{{{digits}}}", "84") == 0
    assert oolong.score(f"Answer: {digits}", "[84]", oolong.NUMERIC) == 0


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
        ("\\boxed{Answer}: \\boxed{84}", "84", 0.0),
        ("", "Fire Bolt", 0.0),
    ],
)
def test_oolong_scores_its_transcripts_as_its_repository(answer: str, gold: str, score: float) -> None:
    """Source: abertsch72/oolong, src/eval/eval_helpers.py, commit 606e5384f1f3eb370bf0ea168888e76d05379be4.

    The values of `dnd_process_response` when it is run.
    """
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
    """Source: booydar/babilong, babilong/metrics.py, commit 58e5d20b775bd111c52c4a227b8e8883ecd0d683.

    The values of `compare_answers`, by hand from its code.
    """
    assert babilong.label_score(answer, "garden", "Where is Mina?", babilong.LABELS["qa1"]) == score


def test_babilong_passes_over_labels_of_the_question() -> None:
    """The same source."""
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
        ('\\boxed{"Una Moss"}', 1.0),
        ("\\boxed{Una\n  Moss}", 1.0),
        ("\\boxed{Una~Moss}", 1.0),
        ("\\boxed{Una Moss} is in my \\boxed", 0.0),  # the last box, though nothing stands in it
        ("\\boxed{Una Moss} or \\boxed{Una", 0.0),
        ("\\boxed {Una Moss}", 0.0),
        ("\\boxed{{Una} Moss}", 0.0),
    ],
)
def test_needlebench_takes_the_name_in_the_box(answer: str, score: float) -> None:
    """Source: open-compass/opencompass, opencompass/datasets/needlebench_v2/atc_elder_only.py, commit
    3e3f6ee1fc7ae5ba6110150e1730fea3e8b6c98d, and datasets/math.py, commit edab1c07baaebe3e6b6b48983d56656f6c93fd76.

    The values of `needlebench_atc_postprocess_v2` and `NeedleBenchATCEvaluator` when they are run.
    """
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
        ("\\text{Answer: } 19$", 19),
        ("\\text{Answer: } 19.5", 19),
        ("\\text{Answer: } 19", 19),
        ("\\text{Answer: } -19$", None),
        ("\\text{Answer: }19$", None),
        ("Answer: 1\x089.", None),  # a character and a backspace become a letter
        ("", None),
    ],
)
def test_gsm_infinite_reads_numbers_as_its_repository(answer: str, number: int | None) -> None:
    """Source: Infini-AI-Lab/gsm_infinite, gsm-infinite/pred/eval_realistic.py, commit
    72fa576e67afeedb71d5d6a3dc89a63e28b9643b.

    The number that `criteriaoutput` compares when it is run. Where digits end the text behind its mark of LaTeX it
    fails with an error. There the number is read here.
    """
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
    """Source: THUDM/LongBench, pred.py, commit c5ea10bcd06285223c58dfed76bbc92d22273709.

    The values of `extract_answer`, by hand from its code.
    """
    assert longbench.read_letter(answer) == letter


@pytest.mark.parametrize(
    ("answer", "score"), [("In Birch.", 1.0), ("the BIRCH", 1.0), ("Birchwood", 0.0), ("Elm", 0.0), ("", 0.0)]
)
def test_frames_takes_whole_words(answer: str, score: float) -> None:
    """Derived by hand from our own rule. The paper has a model judge answers, so no values are published."""
    assert frames.holds(answer, "Birch") == score
