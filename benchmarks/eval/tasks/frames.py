"""FRAMES: questions whose answer needs several articles ("Fact, Fetch, and Reason", arXiv 2409.12941).

    Article: the lighthouse of Elm. ... built by Ada Quill ...      Article: Ada Quill. ... born in Birch ...
    Where was the builder of the lighthouse of Elm born?     Birch

The user's file has rows `Prompt` and `Answer`, as the data set, and `articles`, a list of texts, since the data set
has links alone. The paper lets a model judge answers. Here an answer counts where it holds the right one word for
word, without regard to case, punctuation and articles. That is the same for every way, and no bound. An answer in other
words is missed, and one that names the right words beside a wrong claim counts.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from acmserve.bench.eval.tasks.haystack import hay
from acmserve.bench.eval.tasks.task import EvalSample, EvalTask, Point, check_range, field_of, setting_of, text_of
from acmserve.bench.harness.workloads import KEYS, NAMES, VALUES
from acmserve.errors import InvalidRequest
from acmserve.validation import echo

NAME = "frames"


def make(point: Point, seed: int, material: Any = None) -> list[EvalSample]:
    """A chain through `articles`, in random order, each with some text of the manual: together about `tokens`."""
    check_range(NAME, point, "articles", 1, min(len(NAMES), len(VALUES)))
    draw = random.Random(f"{NAME} {seed} {setting_of(point)}")
    num = point["articles"]
    people, towns = draw.sample(NAMES, min(num, len(NAMES))), draw.sample(VALUES, num)
    thing = f"{draw.choice(KEYS)} of {towns[0].capitalize()}"
    links = [f"The {thing} was built by {people[0]}."]
    links += [f"{people[number - 1]} was taught by {people[number]}." for number in range(1, num - 1)]
    links.append(f"{people[max(num - 2, 0)]} was born in {towns[-1].capitalize()}.")
    each = point["tokens"] // len(links)
    articles = [f"{link} {hay(draw, each)}" for link in links]
    draw.shuffle(articles)
    teachers = "the teacher of " * (num - 2)
    question = f"Where was {teachers}the builder of the {thing} born? Answer with the name of the place alone."
    gold = towns[-1].capitalize()
    return [EvalSample.at(NAME, point, seed, question, gold, _joined(articles))]


def read(row: Mapping[str, Any], stem: str) -> EvalSample:
    """A row of the data set with its articles."""
    articles = field_of(row, "articles", NAME)
    if not isinstance(articles, list) or not all(isinstance(one, str) for one in articles):
        raise InvalidRequest(f"--data {NAME}", "articles is no list of texts.", "Put the pages of the links there.")
    setting = str(row.get("reasoning_types", stem))
    gold = text_of(row, "Answer", NAME)
    if not plain(gold):
        raise InvalidRequest(f"--data {NAME}", f"the answer {echo(gold)} has no word that could be found.")
    return EvalSample(NAME, setting, "", text_of(row, "Prompt", NAME), gold, _joined(articles))


def plain(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces."""
    words = re.sub(r"[^\w\s]", " ", text.lower()).split()
    return " ".join(word for word in words if word not in ("a", "an", "the"))


def holds(answer: str, gold: str) -> float:
    """1 where the answer holds the right one as whole words."""
    return float(f" {plain(gold)} " in f" {plain(answer)} ")


def _joined(articles: list[str]) -> str:
    return "\n\n".join(f"Article {number}: {text}" for number, text in enumerate(articles, start=1))


TASK = EvalTask(
    name=NAME,
    paper="Fact, Fetch, and Reason: A Unified Evaluation of Retrieval-Augmented Generation, arXiv 2409.12941",
    parameters={"articles": (2, 3), "tokens": (1_000,)},
    published={"articles": (2, 5, 10), "tokens": (32_000,)},
    make=make,
    score=lambda sample, answer: holds(answer, sample.gold),
    data="rows with `Prompt`, `Answer`, and `articles`, a list of texts",
    read=read,
)
