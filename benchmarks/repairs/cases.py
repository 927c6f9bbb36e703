"""Which cases `bench repairs` runs, and the kinds of question that each repaired cache is asked. Pure.

    asked          the question that stands behind the edit, and that a repair may look at
    later          other questions, asked of the same repaired cache
    paraphrased    the first question in other words, asked of the same repaired cache

A repair that computes what matches the first question looks good on it alone. Sets of seeds share no case: rules are
made on `train`. A held-out set judges one rule, that was fixed before (`rule.py`), and is used up then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from dataclasses import replace
from functools import partial

from acmserve.bench.harness.library_text import Library
from acmserve.bench.repairs import agents, lists, thoughts
from acmserve.bench.tasks.floor import PARAPHRASED
from acmserve.bench.tasks.generators import mrcr as coreference
from acmserve.bench.tasks.generators import needlebench as needles
from acmserve.bench.tasks.generators import pi_llm, unrelated
from acmserve.bench.tasks.generators.case import TaskCase
from acmserve.errors import AcmError

ASKED, LATER = "asked", "later"
ROLES = (ASKED, LATER, PARAPHRASED)
TRAIN, HELD_OUT = "train", "held-out"
HELD_OUT_2, HELD_OUT_3, HELD_OUT_4 = (f"{HELD_OUT}-{number}" for number in (2, 3, 4))
SEED_SETS = {TRAIN: 50_000, HELD_OUT: 60_000, HELD_OUT_2: 70_000, HELD_OUT_3: 80_000, HELD_OUT_4: 90_000}
"""The first seed of each. All but the last held-out set are used up: rules that ship no more were read on them."""
NEWEST = HELD_OUT_4
"""What is run where no other set is asked for."""
CLEARING_ONE, CLEARING_THREE = "clearing, keep 1", "clearing, keep 3"
PRECISE = (lists.TASK, CLEARING_ONE)
"""What a bound of one point is for has `TIMES_PRECISE` times as many cases. The further ones are no part of the mix."""
TIMES_PRECISE = 3
FAMILY_TITLES = {pi_llm.TASK: "PI-LLM", unrelated.TASK: "unrelated text"}
"""For people. Other tasks are told by their names."""
COREFERENCE = (coreference.MrcrSizes(1, 4, 6), coreference.MrcrSizes(1, 8, 6), coreference.MrcrSizes(2, 4, 6))
PI_LLM = (pi_llm.UpdateSizes(8, 16), pi_llm.UpdateSizes(8, 4), pi_llm.UpdateSizes(12, 8))

# What a question says in other words. What it asks for comes right behind. One row for each form of question.
_PARAPHRASES = (
    (r"(\w+):", "The value that {} has now is"),
    (r"# TODO\((\w+)\): ask", "The one to be asked about {} is"),
    (r"Answer: the owner of (\w+) is", "So whoever wants {} has to turn to"),
    (r"Note: the locker of (\w+) holds", "What {} keeps locked away is"),
    (r"It is known that the parent of (\w+) is", "{} is a child of"),
    (r"It is known that the oldest known ancestor of (\w+) is", "The first of the family that {} comes from is"),
    (r"Once more, the (.+):", "The text of the {}, word for word, was:"),
)

Draw = Callable[[int], TaskCase]


def make_cases(
    num_each: int,
    seed_set: str,
    library: Library,
    family: str | None = None,
    *,
    without: Container[str] = (),
    times_precise: int = TIMES_PRECISE,
) -> list[TaskCase]:
    """`num_each` cases of every task, the tasks in turn and the sizes of each in turn, then more of `PRECISE`.

    With a `family` its cases alone, and none of the families in `without`: the same ones. Raises AcmError where there
    is no such family.
    """
    first = SEED_SETS[seed_set]
    families = draws_by_task(library)
    if family is not None and family not in families:
        raise AcmError(f"there is no family {family!r}; choose one of {', '.join(families)}")
    return [
        _with_questions(task, draws[number % len(draws)](first + number))
        for number in range(times_precise * num_each)
        for task, draws in families.items()
        if family in (None, task) and task not in without and (number < num_each or task in PRECISE)
    ]


def draws_by_task(library: Library) -> dict[str, list[Draw]]:
    """For each task, a maker of cases for each of its sizes."""
    topics = library.topics
    return {
        lists.TASK: [partial(lists.make_case, sizes=sizes, topics=topics) for sizes in lists.SIZES],
        CLEARING_ONE: [partial(agents.clearing, sizes=sizes, library=library) for sizes in agents.KEEP_ONE],
        CLEARING_THREE: [partial(agents.clearing, sizes=sizes, library=library) for sizes in agents.KEEP_THREE],
        agents.REASONING: [partial(agents.reasoning, sizes=sizes, topics=topics) for sizes in agents.REASONING_SIZES],
        thoughts.TASK: [partial(thoughts.make_case, sizes=sizes, topics=topics) for sizes in thoughts.SIZES],
        agents.REMOVAL: [partial(agents.removal, sizes=sizes, topics=topics) for sizes in agents.REMOVAL_SIZES],
        coreference.TASK: [partial(coreference.make_case, sizes=sizes) for sizes in COREFERENCE],
        needles.TASK: [partial(needles.make_case, sizes=sizes, topics=topics) for sizes in needles.SMALL],
        unrelated.TASK: [partial(unrelated.make_case, sizes=sizes, topics=topics) for sizes in unrelated.SMALL],
        pi_llm.TASK: [partial(pi_llm.make_case, sizes=sizes) for sizes in PI_LLM],
    }


def paraphrase(text: str) -> str:
    """The question in other words. Raises ValueError for a form that no row above has."""
    for pattern, words in _PARAPHRASES:
        if found := re.fullmatch(pattern, text):
            return words.format(found[1])
    raise ValueError(f"no paraphrase of {text!r}")


def roles_of(case: TaskCase) -> tuple[str, ...]:
    """What each question of a case is, in their order. A user's own conversation has no paraphrased one."""
    roles = (ASKED, *(LATER for _ in case.questions[1:]))
    return (*roles[:-1], PARAPHRASED) if _ends_in_paraphrase(case) else roles


def _ends_in_paraphrase(case: TaskCase) -> bool:
    asked, last = case.questions[0].text, case.questions[-1].text
    return any(re.fullmatch(pattern, asked) for pattern, _ in _PARAPHRASES) and last == paraphrase(asked)


def _with_questions(task: str, case: TaskCase) -> TaskCase:
    """The case with its questions, the paraphrased one last."""
    asked = case.questions[0]
    made = replace(case, task=task, questions=(*case.questions, replace(asked, text=paraphrase(asked.text))))
    made.check_integrity()
    return made
