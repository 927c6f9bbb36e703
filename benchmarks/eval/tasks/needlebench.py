"""NeedleBench, multi-needle reasoning: the oldest ancestor of a person, over a long text (arXiv 2407.11963).

    hay ... "Ada Quill is the grandfather of Jon Reed." ... hay ... "The mother of Ada Quill is Una Moss." ... hay
    Who is the oldest ancestor of Jon Reed?     \\boxed{Una Moss}

Of the paper: the relations, a chain of n needles over n + 1 people in shuffled order, depths in percent, the answer
in a box, and the scorer, which takes the right name or nothing. Names and hay may be the user's: a JSON object with
`names` (a list, or the data set's text with commas) and `hay` (a text). Names, hay and sentences are our own
otherwise.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from acmserve.bench.eval.tasks.haystack import hay, hide
from acmserve.bench.eval.tasks.task import EvalSample, EvalTask, Point, setting_of
from acmserve.errors import InvalidRequest

NAME = "needlebench"
STEP = 25
"""Percent of the text between two needles."""
RELATIONS = (
    *("father", "mother", "dad", "mom", "grandfather", "grandmother"),
    *("maternal grandmother", "maternal grandfather", "paternal grandfather", "paternal grandmother"),
)
_CLEANED = str.maketrans({"\\": "", '"': "", "'": "", "~": " "})
_SENTENCES = (
    "{elder} is the {relation} of {younger}.",
    "The {relation} of {younger} is {elder}.",
    "In the village everyone knows that {elder} is the {relation} of {younger}.",
    "{younger} was raised by {elder}, the {relation} of {younger}.",
)
_FIRST = ("Ada", "Bram", "Cleo", "Dirk", "Edda", "Finn", "Gwen", "Hugo", "Ines", "Jon", "Kate", "Lars", "Mina", "Nils")
_LAST = ("Ash", "Brook", "Crane", "Dale", "Elder", "Frost", "Grove", "Heath", "Lark", "Moss", "Quill", "Reed", "Stone")


def make(point: Point, seed: int, material: Any = None) -> list[EvalSample]:
    """One chain of `needles` over a text of `tokens`, the first needle at `depth` percent."""
    draw = random.Random(f"{NAME} {seed} {setting_of(point)}")
    names, text = _material(material)
    people = draw.sample(names, point["needles"] + 1)
    needles = [
        draw.choice(_SENTENCES).format(elder=elder, younger=younger, relation=draw.choice(RELATIONS))
        for elder, younger in pairwise(people)
    ]
    draw.shuffle(needles)
    length = max(0, point["tokens"] - sum(map(len, needles)) // 4)
    youngest = people[-1]
    question = (
        f"The text names some relations between people. Who is the oldest ancestor that {youngest} can be traced back "
        "to in it? A name may be that of a man or of a woman, and families share no last name. "
        "End with the name in a box: \\boxed{name}"
    )
    return [
        EvalSample.at(
            NAME,
            point,
            seed,
            question,
            people[0],
            hide(hay(draw, length, text), needles, point["depth"], STEP),
            facts={"needles": needles},
        )
    ]


def boxed_name(answer: str) -> str | None:
    """What the last box of an answer holds, cleaned as the data set's scorer does. None without a box."""
    boxes = re.findall(r"\\boxed\{+((?:\\text\{[^{}]*\}|[^{}])*)\}", answer)
    if not boxes:
        return None
    name = re.sub(r"\\text\{([^{}]*)\}", r"\1", boxes[-1])
    return " ".join(name.translate(_CLEANED).split())


def name_score(answer: str, gold: str) -> float:
    """1 when the box holds the name, else 0."""
    return float(boxed_name(answer) == gold.strip())


def _material(material: Any) -> tuple[list[str], str | None]:
    own = [f"{first} {last}" for first in _FIRST for last in _LAST]
    if material is None:
        return own, None
    if not isinstance(material, Mapping) or not material.keys() & {"names", "hay"}:
        raise InvalidRequest(f"--data {NAME}", "is no JSON object with 'names' or 'hay'.")
    names = material.get("names", own)
    names = [name.strip() for name in (names.split(",") if isinstance(names, str) else names)]
    return names, material.get("hay")


TASK = EvalTask(
    name=NAME,
    paper="NeedleBench: Can LLMs Do Retrieval and Reasoning in Information-Dense Context?, arXiv 2407.11963",
    parameters={"needles": (2, 3), "tokens": (1_000,), "depth": (40,)},
    published={"needles": (2, 3, 4, 5), "tokens": (1_000, 2_000, 16_000, 64_000, 128_000), "depth": (40,)},
    make=make,
    score=lambda sample, answer: name_score(answer, sample.gold),
    data="a JSON object with `names` and `hay`",
    preset="needlebench",
)
