"""The sentences that tell a model what an edit costs, with numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from acmserve.context.edits import cost
from acmserve.context.edits.cost import EditCost, effect_of
from acmserve.context.edits.cut import cut_messages
from acmserve.context.edits.fragments import fold
from acmserve.context.session.state import SessionState
from acmserve.plan import repair
from acmserve.plan.repair import Repair
from tests.support.context.conversation import WORDS, Words, assistant, call, lines, state_of, user

# Tokens: 3 before, 101 in the log (10 lines of 10, and the last line break), 4 behind it, 4 in the answer.
FIRST = "f9e375"


def state() -> SessionState:
    made = state_of(user("Read this:"), user(lines(10)), user("What is it ?"), assistant("It is nothing ."))
    return cut_messages(made, 1, 2, WORDS).state


@pytest.mark.parametrize(
    ("fidelity", "cost"),
    [
        ("exact", "recomputes about 26 tokens"),
        ("auto", "recomputes about 26 tokens"),
        ("repair", "recomputes about 26 tokens"),
        ("reuse", "recomputes about 18 tokens and moves about 8"),
    ],
)
def test_a_fold_says_what_the_next_step_pays(fidelity: str, cost: str) -> None:
    """The marker has 17 tokens and a line break. 8 tokens stand behind the marker."""
    outcome = call(state(), "fold_fragment", fidelity=fidelity, fragment_id=FIRST)
    cost_line = f"The next step {cost}."
    assert outcome.result.startswith("f9e375 is folded: ")
    assert outcome.result.endswith(f" tokens fewer, this call counted. {cost_line}")


class CountedTexts:
    """Counts which texts are tokenized."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def starts(self, text: str) -> Sequence[int]:
        self.seen.append(text)
        return WORDS.starts(text)


def test_no_edit_looks_at_what_stands_in_front_of_it() -> None:
    """Of 1,000 messages, a fold of the last but one counts its own, its marker and what is behind it."""
    made = state_of(*[user(f"{number}\n{lines(10)}") for number in range(1000)])
    made = cut_messages(made, 998, 999, WORDS).state
    counted = CountedTexts()
    after = fold(made, made.fragments[0].fragment_id, "sculptor", counted)
    effect = cost.effect_of(made, after, "exact", counted)
    assert effect.num_saved > 80
    assert effect.cost.num_computed > 101, "the last message is counted"
    assert len({text for text in counted.seen if text[:1].isdigit()}) == 2
    assert len(counted.seen) < 20


def test_repair_is_priced_by_the_heads_of_what_moves() -> None:
    assert EditCost(5).with_text(1000, "repair", 2) == EditCost(5 + 2 * 128, 1000 - 2 * 128)
    assert Repair().head_tokens == 128


def test_a_summary_and_a_restore_say_it_too() -> None:
    made = call(state(), "summarize_fragment", fragment_id=FIRST, focus="x", supplied="Ten lines .")
    assert made.result.startswith(
        "f9e375 is summarized: 8 tokens fewer, this call counted. The next step recomputes about 35 tokens."
    )
    back = call(made.state, "restore_fragment", fragment_id=FIRST)
    assert back.result == "f9e375 is visible again: 101 tokens. The next step recomputes about 109 tokens at most."


def test_new_fragments_are_listed_with_size_ends_and_price() -> None:
    text = state_of(user(lines(10)), user("What is it ?"))
    outcome = call(text, "fragment_context", start_marker="line 0", end_marker="line 9", num_fragments=2)
    words = 6 * " word"
    first = f'f9e375: 41 tokens, from "line 0{words} wor" to "3 word{words} end"'
    second = f'f3c6ea: 51 tokens, from "line 4{words} wor" to "{words[1:]} end line 9"'
    assert outcome.result.splitlines() == [
        "Made 2 fragments, nothing is hidden yet.",
        f"{first}; a fold recomputes about 81 tokens.",
        f"{second}; a fold recomputes about 30 tokens.",
    ]


def test_fewer_fragments_than_asked_for_are_explained() -> None:
    outcome = call(state_of(user("one two")), "fragment_context", start_marker="one", end_marker="two", num_fragments=5)
    assert outcome.result.startswith(
        "Made 2 fragments (5 were asked for, the text has no more to cut), nothing is hidden yet."
    )


def test_hidden_text_behind_a_fold_counts_as_its_marker() -> None:
    made = state_of(user(lines(10)), user(lines(10)))
    for message in (0, 1):
        made = cut_messages(made, message, message + 1, WORDS).state
    second = call(made, "fold_fragment", fragment_id=made.fragments[1].fragment_id)
    first = call(second.state, "fold_fragment", fragment_id=made.fragments[0].fragment_id)
    assert "recomputes about 18 tokens." in second.result
    assert "recomputes about 36 tokens." in first.result


def test_the_head_that_repair_computes_is_the_one_that_is_priced() -> None:
    """The context layer may not import the plans, so it has the number again."""
    assert cost.REPAIRED_HEAD_TOKENS == repair.DEFAULT_HEAD_TOKENS


class CountedWords(Words):
    """Counts how often a text was looked at."""

    def __init__(self) -> None:
        self.num_looks = 0

    def starts(self, text: str) -> Sequence[int]:
        self.num_looks += 1
        return super().starts(text)


@pytest.mark.parametrize("num_entries", [40, 160])
def test_an_edit_looks_at_its_own_text_and_at_what_stands_behind_it(num_entries: int) -> None:
    """A thousand edits may come in one request. Whoever looks at the whole conversation for each blocks the server."""
    made = state_of(*(user(lines(10, name=f"log {number}")) for number in range(num_entries)))
    words = CountedWords()
    made = cut_messages(made, num_entries - 4, num_entries - 3, words).state
    words.num_looks = 0
    folded = fold(made, made.fragments[0].fragment_id, "sculptor", words)
    assert words.num_looks < 8
    effect_of(made, folded, "exact", words)
    assert words.num_looks < 20
