"""MRCR: the n-th answer to a request that was made several times in a long conversation (arXiv 2409.12640).

    user: Write a poem about moss.       assistant: ...      <- needle 1
    user: Write a riddle about teak.     assistant: ...
    user: Write a poem about moss.       assistant: ...      <- needle 2
    user: Put 4KXw2cPz9a in front of the second poem about moss, and write it once more.

There are two published scorers, and two forms of data.

    mrcr      rows with `prompt` (messages as JSON), `answer`, `random_string_to_prepend`. An answer that does not begin
              with the string to the byte scores 0, else the ratio of difflib behind it.
    mrcr-v2   rows with `queries` (one text) and `answer`, which begins with a string of twelve characters. White space
              at the ends does not count. The ratio is that of the text behind the last such string.

Both ratios are difflib's with its heuristic for frequent characters, as published. Without a file the conversations
are generated: requests of one kind have the same words, and answers of words of our own.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Mapping
from difflib import SequenceMatcher
from functools import partial
from typing import Any

from acmserve.bench.eval.tasks.task import EvalSample, EvalTask, Point, check_range, setting_of, text_of
from acmserve.bench.harness.workloads import KEYS, VALUES
from acmserve.context.transcript.message import Message
from acmserve.errors import InvalidRequest
from acmserve.validation import echo

V1, V2 = "mrcr", "mrcr-v2"
PREFIX_CHARS, HASH_CHARS = 10, 12
"""Of the random string that an answer begins with: in the first data set, and in the second with its scorer."""
FORMS = ("poem", "riddle", "letter", "note", "slogan", "short story", "tweet")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
_WORDS_OF_AN_ANSWER = 40
_OWN_ROWS = "Give the data set's own rows."


def make(name: str, point: Point, seed: int, material: Any = None) -> list[EvalSample]:
    """One conversation with `needles` requests of one kind and so many others that it has about `tokens`."""
    check_range(name, point, "needles", 1, len(ORDINALS))
    draw = random.Random(f"{name} {seed} {setting_of(point)}")
    kinds = [(form, topic) for form in FORMS for topic in KEYS]
    draw.shuffle(kinds)
    asked, others = kinds[0], kinds[1:]
    num_others = max(0, point["tokens"] * 4 // (8 * _WORDS_OF_AN_ANSWER) - point["needles"])
    requests = [asked] * point["needles"] + [draw.choice(others) for _ in range(num_others)]
    draw.shuffle(requests)
    turns = [(kind, " ".join(draw.choices(VALUES, k=_WORDS_OF_AN_ANSWER)).capitalize() + ".") for kind in requests]
    number = draw.randrange(point["needles"])
    prefix = "".join(draw.choices(string.ascii_letters + string.digits, k=PREFIX_CHARS if name == V1 else HASH_CHARS))
    gold = prefix + [text for kind, text in turns if kind == asked][number]
    question = (
        f"Write the {ORDINALS[number]} {asked[0]} about the {asked[1]} once more, word for word, and put {prefix} "
        "directly in front of it. Write nothing else."
    )
    messages: list[Message] = []
    for kind, text in turns:
        messages.append({"role": "user", "content": f"Write a {kind[0]} about the {kind[1]}."})
        messages.append({"role": "assistant", "content": text})
    if name == V1:
        return [EvalSample.at(name, point, seed, question, gold, history=tuple(messages), facts={"prefix": prefix})]
    told = "\n\n".join(f"{str(one['role']).capitalize()}: {one['content']}" for one in messages)
    return [EvalSample.at(name, point, seed, f"User: {question}", gold, told)]


def read_v1(row: Mapping[str, Any], stem: str) -> EvalSample:
    """A row of the data set of the first kind."""
    try:
        messages = json.loads(text_of(row, "prompt", V1))
        said = [(one["role"], one["content"]) for one in messages]
        if not said or not all(isinstance(text, str) for one in said for text in one):
            raise ValueError("each has a role and a text")
        *history, last = messages
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidRequest(f"--data {V1}", f"a prompt is no JSON list of messages: {error}") from error
    gold, prefix = text_of(row, "answer", V1), text_of(row, "random_string_to_prepend", V1)
    setting = f"needles{row.get('n_needles', '?')}"
    return EvalSample(
        V1, setting, "", last["content"], gold, history=tuple(history), max_tokens=4096, facts={"prefix": prefix}
    )


def read_v2(row: Mapping[str, Any], stem: str) -> EvalSample:
    """A row of the data set of the second kind. Its text ends with the question."""
    gold = text_of(row, "answer", V2)
    if len(gold.strip()) < HASH_CHARS:
        raise InvalidRequest(
            f"--data {V2}", f"the answer {echo(gold)} has no string of {HASH_CHARS} characters in front.", _OWN_ROWS
        )
    return EvalSample(V2, stem, "", text_of(row, "queries", V2), gold, max_tokens=4096)


def score_v1(answer: str, gold: str, prefix: str) -> float:
    """The published score of the first kind."""
    if not answer.startswith(prefix):
        return 0.0
    return SequenceMatcher(None, answer.removeprefix(prefix), gold.removeprefix(prefix)).ratio()


def score_v2(answer: str, gold: str, *, is_lenient: bool = False) -> float:
    """The published score of the second kind. The lenient one lets text stand in front of the string."""
    answer, gold = answer.strip(), gold.strip()
    prefix = gold[:HASH_CHARS]
    at = answer.rfind(prefix) if len(prefix) == HASH_CHARS else -1
    if at < 0 or not (is_lenient or answer.startswith(prefix)):
        return 0.0
    written = answer[at + HASH_CHARS :].strip()
    return SequenceMatcher(None, gold[HASH_CHARS:].strip(), written).ratio()


_PAPER = "Michelangelo: Long Context Evaluations Beyond Haystacks via Latent Structure Queries, arXiv 2409.12640"
_SMALL = {"needles": (2,), "tokens": (1_000,)}
_PUBLISHED = {"needles": (2, 4, 8), "tokens": (8_192, 16_384, 32_768, 65_536, 131_072)}

TASK = EvalTask(
    name=V1,
    paper=_PAPER,
    parameters=_SMALL,
    published=_PUBLISHED,
    make=partial(make, V1),
    score=lambda sample, answer: score_v1(answer, sample.gold, sample.facts["prefix"]),
    data="rows with `prompt`, `answer`, `random_string_to_prepend`",
    read=read_v1,
)
TASK_V2 = EvalTask(
    name=V2,
    paper=_PAPER,
    parameters=_SMALL,
    published=_PUBLISHED,
    make=partial(make, V2),
    score=lambda sample, answer: score_v2(answer, sample.gold),
    data="rows with `queries` and `answer`",
    read=read_v2,
)
