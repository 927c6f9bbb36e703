"""PI-LLM: a stream of updates to 46 keys, and all of their last values ("Unable to Forget", arXiv 2506.08184).

    material: teak; bug: barrel moss; material: reed; ...      each key as often, no key twice in a row
    What is the current value of each key?                     "The current value of material is reed."

The 46 keys, the form of the stream and of the answer, and the scorer are the paper's. Its dictionary has 400 values
for each key, and is the user's file: a JSON object of 46 lists. Without it the values are pairs of words of our own,
as many for each key. More updates than values repeat values, as the paper's option for that does. The scorer is the
share of keys whose last value is given, without regard to case. `last_values` reads answers as the paper's does.

Decision: the paper leaves an answer that is empty, or tells of an error, out of its mean. Here it scores 0: a request
that failed never comes to a scorer, so such an answer is the model's own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from acmserve.bench.eval.tasks.last_values import read_values
from acmserve.bench.eval.tasks.task import EvalSample, EvalTask, Point, check_range, setting_of
from acmserve.bench.harness.workloads import KEYS as FIRST_WORDS
from acmserve.bench.harness.workloads import VALUES as SECOND_WORDS
from acmserve.errors import InvalidRequest

NAME = "pi-llm"
NUM_VALUES = 400
# The paper's keys, with its spelling. They define the task.
# fmt: off
TRACKED_KEYS = (
    "bird", "material", "African place", "profession", "dessert", "built environment", "music", "bug", "body",
    "climate", "American place", "mythology", "emotion", "plant", "weapon", "furnishing", "illness", "aircraft",
    "condiment", "action", "clothing", "gaming", "dance", "programming", "law", "water body", "European place",
    "measurement", "landform", "tools", "visual art", "Tech", "sport", "beverage", "land vehicle", "fruit", "festival",
    "cosmos", "Asian place", "watercraft", "quodruped", "physics", "electronics", "dish", "chemical", "aquatic animal",
)
# fmt: on
UPDATES = (2, 3, 4, 6, 8, 12, 17, 24, 34, 48, 68, 97, 139, 197, 281, 400)
"""How often each key is set, in the paper's own runs."""


def make(point: Point, seed: int, dictionary: Any = None) -> list[EvalSample]:
    """One stream and the question about all of its keys."""
    for name in ("keys", "updates"):
        check_range(NAME, point, name, 1)
    draw = random.Random(f"{NAME} {seed} {setting_of(point)}")
    values = own_values(draw) if dictionary is None else check_dictionary(dictionary)
    keys = draw.sample(list(values), min(point["keys"], len(values)))
    updates = {key: _updates(draw, values[key], point["updates"]) for key in keys}
    stream = mixed(draw, updates)
    listed = ", ".join(keys)
    told = "".join(f"{key}: {value}; " for key, value in stream)
    context = (
        f"Read this stream of updates with care. It sets {len(keys)} keys to new values again and again: {listed}.\n\n"
        f"The stream of updates begins on the next line.\n{told}"
    )
    question = (
        f"What is the current value of each of these keys: {listed}? "
        "Give one line for each key, in this form: 'The current value of <key> is <value>.'"
    )
    last = dict(stream)
    return [
        EvalSample.at(
            NAME,
            point,
            seed,
            question,
            "; ".join(f"{key}: {value}" for key, value in last.items()),
            context,
            max_tokens=1024,
            facts={"values": last},
        )
    ]


def mixed(draw: random.Random, updates: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """All updates, those of a key in their order, in random order of the keys, and no key twice in a row."""
    left = {key: list(values) for key, values in updates.items()}
    stream: list[tuple[str, str]] = []
    num_left = sum(map(len, left.values()))
    while num_left:
        before = stream[-1][0] if stream else None
        # A key with more than half of what is left has to come now, or it stands twice in a row at the end.
        most = max(left, key=lambda key: len(left[key]))
        weights = [0 if key == before else len(values) for key, values in left.items()]
        if most != before and 2 * len(left[most]) > num_left:
            key = most
        else:
            key = draw.choices(list(left), weights)[0] if any(weights) else most
        stream.append((key, left[key].pop(0)))
        num_left -= 1
    return stream


def own_values(draw: random.Random) -> dict[str, list[str]]:
    """As many values for each key as the paper's dictionary has, each of two words."""
    pairs = [f"{one} {two}" for one in FIRST_WORDS for two in SECOND_WORDS]
    return {key: draw.sample(pairs, NUM_VALUES) for key in TRACKED_KEYS}


def check_dictionary(dictionary: Any) -> dict[str, list[str]]:
    """The user's dictionary. Raises `InvalidRequest` for another shape."""
    if not (isinstance(dictionary, Mapping) and dictionary) or not all(
        isinstance(values, list) and values and all(isinstance(value, str) for value in values)
        for values in dictionary.values()
    ):
        raise InvalidRequest(f"--data {NAME}", "is no JSON object with a list of values for each key.")
    return {str(key): list(values) for key, values in dictionary.items()}


def share_of_values(answer: str, values: Mapping[str, str]) -> float:
    """The paper's accuracy of one stream: right keys over all keys. NaN where it takes the answer for none."""
    found = read_values(answer)
    if found is None:
        return math.nan
    right = sum(found.get(key, "").strip().lower() == value.strip().lower() for key, value in values.items())
    return right / len(values)


def score(answer: str, values: Mapping[str, str]) -> float:
    """The accuracy, and 0 for what is no answer."""
    share = share_of_values(answer, values)
    return 0.0 if math.isnan(share) else share


def _updates(draw: random.Random, values: Sequence[str], num: int) -> list[str]:
    return draw.sample(values, num) if num <= len(values) else draw.choices(values, k=num)


TASK = EvalTask(
    name=NAME,
    paper="Unable to Forget: Proactive Interference Reveals Working Memory Limits in LLMs Beyond Context Length, "
    "arXiv 2506.08184",
    parameters={"keys": (46,), "updates": (4, 16)},
    published={"keys": (46,), "updates": UPDATES},
    make=make,
    score=lambda sample, answer: score(answer, sample.facts["values"]),
    data="the paper's dictionary: a JSON object with 46 lists of 400 values",
    preset="pi-llm",
)
