"""NeedleBench, multi-needle reasoning: the oldest ancestor of a person, over a long text (arXiv 2407.11963).

    hay ... "Ada Quill is the grandfather of Jon Reed." ... hay ... "The mother of Ada Quill is Una Moss." ... hay
    Who is the oldest ancestor of Jon Reed?     \\boxed{Una Moss}

Of the paper are the relations, a chain of n needles over n + 1 people in shuffled order, and depths in percent. So are
the answer in a box, and the scorer, which takes the right name or nothing. Names, sentences and hay may be the user's.
They come as a JSON object with `names` (a list, or the data set's text with commas), `sentences` (a list) and `hay` (a
text). In a sentence {A} stands for the elder person, {B} for the younger one, and {relationship} between them. Names,
sentences and hay are our own otherwise.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from string import Formatter
from typing import Any

from acmserve.bench.eval.tasks.haystack import hay, hide
from acmserve.bench.eval.tasks.task import EvalSample, EvalTask, Point, setting_of
from acmserve.errors import InvalidRequest
from acmserve.validation import echo, listing

NAME = "needlebench"
STEP = 10
"""Percent of the text between two needles."""
DEPTHS = tuple(range(0, 101, 10))
"""Percent of the text in front of the first needle, in the data set's own grid."""
RELATIONS = (
    *("father", "mother", "dad", "mom", "grandfather", "grandmother"),
    *("maternal grandmother", "maternal grandfather", "paternal grandfather", "paternal grandmother"),
)
_BOX = "\\boxed{"
_FIELDS = frozenset({"names", "sentences", "hay"})
_SENTENCES = (
    "{A} is the {relationship} of {B}.",
    "The {relationship} of {B} is {A}.",
    "In the village everyone knows that {A} is the {relationship} of {B}.",
    "{B} was raised by {A}, the {relationship} of {B}.",
)
"""`A` is the elder one, as in the templates of the data set."""
_FIRST = ("Ada", "Bram", "Cleo", "Dirk", "Edda", "Finn", "Gwen", "Hugo", "Ines", "Jon", "Kate", "Lars", "Mina", "Nils")
_LAST = ("Ash", "Brook", "Crane", "Dale", "Elder", "Frost", "Grove", "Heath", "Lark", "Moss", "Quill", "Reed", "Stone")


@dataclass(frozen=True, slots=True)
class NeedleMaterial:
    """What a text is made of. `hay` is None for the manual of the running Python."""

    names: tuple[str, ...] = tuple(f"{first} {last}" for first in _FIRST for last in _LAST)
    sentences: tuple[str, ...] = _SENTENCES
    hay: str | None = None


def make(point: Point, seed: int, material: Any = None) -> list[EvalSample]:
    """One chain of `needles` over a text of `tokens`, the first needle at `depth` percent."""
    draw = random.Random(f"{NAME} {seed} {setting_of(point)}")
    given = check_material(material)
    num_people = point["needles"] + 1
    if len(given.names) < num_people:
        raise InvalidRequest(f"--data {NAME}", f"has {len(given.names)} names.", f"Give at least {num_people}.")
    people = draw.sample(given.names, num_people)
    needles = [
        draw.choice(given.sentences).format(A=elder, B=younger, relationship=draw.choice(RELATIONS))
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
            hide(hay(draw, length, given.hay), needles, point["depth"], STEP),
            facts={"needles": needles},
        )
    ]


def boxed_name(answer: str) -> str | None:
    """What the last box of an answer holds, cleaned as the data set's scorer does. None without a box that ends."""
    text = answer[answer.rfind("\\boxed") :]
    if not text.startswith(_BOX) or (end := _closing_brace(text)) is None:
        return None
    name = text[len(_BOX) : end]
    if inner := re.match(r"\{(.*)\}$", name):
        name = inner[1]
    name = re.sub(r"\\(?:text|boxed)\{([^}]+)\}", r"\1", name)
    name = " ".join(re.sub(r"\\[\[\]]", "", name).replace("\\", "").split())
    return re.sub("[\"']", "", name).replace("~", " ").strip() or None


def _closing_brace(text: str) -> int | None:
    """Where the first brace of a text is closed, None where it is not."""
    depth = 0
    for at, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if char == "}" and depth == 0:
            return at
    return None


def name_score(answer: str, gold: str) -> float:
    """1 when the box holds the name, else 0."""
    return float(boxed_name(answer) == gold.strip())


def check_material(material: Any) -> NeedleMaterial:
    """The user's file. Raises `InvalidRequest` for another shape."""
    if material is None:
        return NeedleMaterial()
    if not isinstance(material, Mapping) or not material.keys() & _FIELDS:
        raise InvalidRequest(f"--data {NAME}", f"is no JSON object with {listing(sorted(_FIELDS))}.")
    text = material.get("hay")
    if text is not None and not isinstance(text, str):
        raise InvalidRequest(f"--data {NAME}", f"hay is {echo(text)}, and no text.")
    given = {name: _texts(material[name], name) for name in ("names", "sentences") if name in material}
    for sentence in given.get("sentences", ()):
        if not _is_sentence(sentence):
            raise InvalidRequest(
                f"--data {NAME}", f"the sentence {echo(sentence)} cannot be filled.", "Use {A}, {B} and {relationship}."
            )
    return NeedleMaterial(hay=text, **given)


def _texts(value: Any, name: str) -> tuple[str, ...]:
    """A list of texts. Names may be one text with commas between them, as in the data set."""
    texts = value.split(",") if isinstance(value, str) and name == "names" else value
    if not isinstance(texts, list) or not texts or not all(isinstance(one, str) for one in texts):
        raise InvalidRequest(f"--data {NAME}", f"{name} is {echo(value)}, and no list of texts.")
    return tuple(one.strip() for one in texts)


def _is_sentence(text: str) -> bool:
    """Whether it names the elder and the younger. A template of the data set leaves the relationship out."""
    try:
        fields = {(field, form, way) for _, field, form, way in Formatter().parse(text) if field is not None}
    except ValueError:
        return False
    plain = {(name, "", None) for name in ("A", "B", "relationship")}
    return fields <= plain and fields >= {("A", "", None), ("B", "", None)}


TASK = EvalTask(
    name=NAME,
    paper="NeedleBench: Can LLMs Do Retrieval and Reasoning in Information-Dense Context?, arXiv 2407.11963",
    parameters={"needles": (2, 3), "tokens": (1_000,), "depth": (40,)},
    published={"needles": (2, 3, 4, 5), "tokens": (1_000, 2_000, 16_000, 64_000, 128_000), "depth": (40,)},
    make=make,
    score=lambda sample, answer: name_score(answer, sample.gold),
    data="a JSON object with `names`, `sentences` and `hay`",
    preset="needlebench",
)
