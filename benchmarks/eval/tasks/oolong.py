"""OOLONG: a question about all lines of a text, none of which answers it alone (arXiv 2511.02817).

    Date: Jul 06, 2024 || User: 48211 || Instance: a crate of cedar was left at the pier
    Which label is the most common? ...                                   "Label: tree"

Of the synthetic split: the form of the lines, the types of answers, and its scorer. The answer is what stands behind
the last colon. It is right, or a number that is wrong by d scores 0.75 to the power of d. The user's file has rows of
this split, or those of `oolong_real`. What is generated without it are lines whose label one word of them decides. Each
four of the `questions` about a text have one of each type.

The scorer of the data set reads dates with a library that guesses. `dates` tells which of its forms count here.
"""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from itertools import permutations
from typing import Any

from acmserve.bench.eval.tasks import oolong_real
from acmserve.bench.eval.tasks.dates import read_date
from acmserve.bench.eval.tasks.task import EvalSample, EvalTask, Point, check_range, setting_of, text_of
from acmserve.errors import InvalidRequest
from acmserve.validation import echo

NAME = "oolong"
NUMERIC, LABEL, COMPARISON, USER, DATE = (
    f"ANSWER_TYPE.{name}" for name in ("NUMERIC", "LABEL", "COMPARISON", "USER", "DATE")
)
FREQUENCIES = ("more common", "less common", "same frequency")
_LABELS = {
    "tree": ("cedar", "elm", "willow", "maple", "pine", "birch"),
    "metal": ("iron", "zinc", "nickel", "copper", "brass", "tin"),
    "stone": ("jade", "quartz", "onyx", "slate", "flint", "marble"),
}
_PLACES = ("pier", "mill", "chapel", "market", "station", "quarry", "harbour", "bakery")
_CHARS_OF_A_LINE = 90
_NUM_USERS = 6
_NUM_TYPES, MOST_QUESTIONS = 4, 16


def make(point: Point, seed: int, material: Any = None) -> list[EvalSample]:
    """One text of about `tokens`, and `questions` about it: four, one of each type, unless it is said otherwise."""
    num = point.get("questions", _NUM_TYPES)
    check_range(NAME, {"questions": num}, "questions", 1, MOST_QUESTIONS)
    # More questions are asked about the same text.
    point = {name: value for name, value in point.items() if name != "questions"}
    draw = random.Random(f"{NAME} {seed} {setting_of(point)}")
    point |= {} if num == _NUM_TYPES else {"questions": num}
    num_lines = max(8, point["tokens"] * 4 // _CHARS_OF_A_LINE)
    labels = draw.choices(list(_LABELS), weights=draw.sample((5, 3, 2), 3), k=num_lines)
    users = [str(number) for number in draw.sample(range(10_000, 99_999), _NUM_USERS)]
    writers = draw.choices(users, k=num_lines)
    day = date(2024, 1, 1) + timedelta(days=draw.randrange(300))
    lines = [
        f"Date: {day + timedelta(days=number // 4):%b %d, %Y} || User: {user} || Instance: "
        f"a crate of {draw.choice(_LABELS[label])} was left at the {draw.choice(_PLACES)}"
        for number, (label, user) in enumerate(zip(labels, writers, strict=True))
    ]
    context = (
        f"The following lines hold {num_lines} instances, each with a date and a user. Each instance has one label, "
        f"which is what the crate holds: {', '.join(_LABELS)}.\n\n" + "\n".join(lines)
    )
    where = {"task": NAME, "setting": setting_of(point), "context": context, "group": f"{setting_of(point)}/{seed}"}
    first = _questions(draw, labels, writers)
    asked = [*first, *_more_questions(draw, labels, writers, first)][:num]
    return [_sample(where, number // _NUM_TYPES, *one) for number, one in enumerate(asked)]


def _sample(where: Mapping[str, Any], number: int, kind: str, question: str, gold: str) -> EvalSample:
    name = f"{where['group']}/{kind.rpartition('.')[2].lower()}{f'-{number + 1}' if number else ''}"
    return EvalSample(name=name, question=question, gold=gold, facts={"answer_type": kind}, **where)


Asked = tuple[str, str, str]
"""Type, question, and answer as the data set writes it."""


def _questions(draw: random.Random, labels: list[str], writers: list[str]) -> list[Asked]:
    """One question of each type."""
    counted, users = Counter(labels), Counter(writers)
    one, other = draw.sample(list(_LABELS), 2)
    return [
        _number(counted, one),
        (
            LABEL,
            (
                "Which label is the most common? Of equally common ones give the first of the list. "
                "Answer in the form 'Label: answer'."
            ),
            f"['{_top_label(counted)}']",
        ),
        _comparison(counted, one, other),
        (
            USER,
            (
                "Which user has the most instances? Of equal ones give the smallest number. "
                "Answer in the form 'User: answer'."
            ),
            f"[{_top_user(users, users)}]",
        ),
    ]


def _top_label(counted: Counter[str]) -> str:
    """The first of equally common ones."""
    return max(_LABELS, key=lambda label: counted[label])


def _top_user(counted: Counter[str], users: Iterable[str]) -> str:
    """The smallest number of equal ones."""
    return min(users, key=lambda user: (-counted[user], user))


def _number(counted: Counter[str], label: str) -> Asked:
    question = f"How many instances have the label {label}? Answer in the form 'Answer: number'."
    return NUMERIC, question, f"[{counted[label]}]"


def _comparison(counted: Counter[str], one: str, other: str) -> Asked:
    less = (counted[one] > counted[other]) - (counted[one] < counted[other])
    frequency = FREQUENCIES[{1: 0, -1: 1, 0: 2}[less]]
    question = (
        f"Is the label {one} more common, less common, or of the same frequency as the label {other}? "
        f"Answer in the form 'Answer: {one} is ... {other}', with one of: {', '.join(FREQUENCIES)}."
    )
    return COMPARISON, question, f"['{frequency}']"


def _more_questions(
    draw: random.Random, labels: list[str], writers: list[str], asked: Sequence[Asked]
) -> Iterator[Asked]:
    """Further ones, of each type in turn, about labels, users, and the labels of users. None was asked before."""
    counted, users = Counter(labels), Counter(writers)
    of_user = {one: Counter(kind for kind, name in zip(labels, writers, strict=True) if name == one) for one in users}
    with_label = {
        one: Counter(name for kind, name in zip(labels, writers, strict=True) if kind == one) for one in _LABELS
    }
    least = min(_LABELS, key=lambda label: counted[label])
    fewest = min(users, key=lambda user: (users[user], user))
    first, smallest = "Of equally common ones give the first of the list.", "Of equal ones give the smallest number."
    number, label, user = (
        f"Answer in the form '{form}'." for form in ("Answer: number", "Label: answer", "User: answer")
    )
    pools: list[list[Asked]] = [
        [
            *(_number(counted, one) for one in _LABELS),
            *((NUMERIC, f"How many instances does the user {one} have? {number}", f"[{users[one]}]") for one in users),
        ],
        [
            (LABEL, f"Which label is the least common? {first} {label}", f"['{least}']"),
            *(
                (
                    LABEL,
                    f"Which label is the most common of the user {one}? {first} {label}",
                    f"['{_top_label(of_user[one])}']",
                )
                for one in users
            ),
        ],
        [_comparison(counted, *pair) for pair in permutations(_LABELS, 2)],
        [
            (USER, f"Which user has the fewest instances? {smallest} {user}", f"[{fewest}]"),
            *(
                (
                    USER,
                    f"Which user has the most instances with the label {one}? {smallest} {user}",
                    f"[{_top_user(with_label[one], users)}]",
                )
                for one in _LABELS
            ),
        ],
    ]
    left = [[one for one in pool if one not in asked] for pool in pools]
    for turn in zip(*(draw.sample(pool, len(pool)) for pool in left), strict=False):
        yield from turn


def read(row: Mapping[str, Any], stem: str) -> EvalSample:
    """A row of the data set, of either split."""
    if oolong_real.is_row(row):
        return oolong_real.read(row, NAME)
    window, gold = str(row.get("context_window_id", "")), text_of(row, "answer", NAME)
    try:
        _right_answer(gold)
    except (ValueError, SyntaxError, LookupError, TypeError) as error:
        raise InvalidRequest(
            f"--data {NAME}", f"the answer {echo(gold)} is no list with one entry.", "Give the data set's own rows."
        ) from error
    return EvalSample(
        NAME,
        f"{row.get('dataset', stem)}-{row.get('context_len', '?')}",
        str(row.get("id", "")),
        text_of(row, "question", NAME),
        gold,
        text_of(row, "context_window_text", NAME),
        group=window,
        facts={"answer_type": text_of(row, "answer_type", NAME)},
    )


def parsed_answer(answer: str) -> str:
    """What the scorer of the data set takes for the answer."""
    if ":" not in answer:
        return answer if len(answer) < 20 else (answer.split() or [""])[-1]
    found = answer.split(":")[-1].strip().translate(str.maketrans("", "", "*[]"))
    if len(found) >= 20:
        return next((frequency for frequency in FREQUENCIES if frequency in found), found)
    return found


def score(answer: str, gold: str, answer_type: str) -> float:
    """The score of the synthetic split. `gold` is its text, such as `['tree']` or `[datetime.date(2024, 7, 6)]`."""
    said = parsed_answer(answer)
    right = _right_answer(gold)
    if isinstance(right, date):
        return float(read_date(said) == right) if answer_type == DATE else 0.0
    if said == str(right):
        return 1.0
    if said in FREQUENCIES:
        return float(said in str(right))
    if answer_type == NUMERIC:
        try:
            return oolong_real.distance_score(int(right), int(said))
        except (ValueError, TypeError):
            return 0.0
    return 0.0


def _right_answer(gold: str) -> Any:
    if "datetime" in gold:
        return datetime.strptime(gold, "[datetime.date(%Y, %m, %d)]").date()
    parsed = ast.literal_eval(gold)
    if not isinstance(parsed, list):
        raise TypeError(f"{gold} is no list")
    (right,) = parsed
    return right


def _score_of(sample: EvalSample, answer: str) -> float:
    if sample.facts.get("split") == oolong_real.SPLIT:
        return oolong_real.score(answer, sample.gold)
    return score(answer, sample.gold, sample.facts["answer_type"])


TASK = EvalTask(
    name=NAME,
    paper="Oolong: Evaluating Long Context Reasoning and Aggregation Capabilities, arXiv 2511.02817",
    parameters={"tokens": (1_000,), "questions": (_NUM_TYPES,)},
    published={"tokens": (8_192, 16_384, 32_768, 65_536, 131_072)},
    make=make,
    score=_score_of,
    data="rows of either split: `context_window_text`, `question`, `answer`, and `answer_type` or `question_type`",
    read=read,
    guess=(2 / 3 + 1 / _NUM_USERS) / 4,
)
