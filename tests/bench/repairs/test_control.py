"""The control of `bench repairs` computes what the question has words in common with, and stays within its budget."""

from __future__ import annotations

from acmserve.bench.repairs.control import NUM_BEHIND, lexical_ranges

FORM, KEY, OTHER = 7, 500, 600


def chosen(prompt: tuple[int, ...], question: tuple[int, ...], budget: float = 0.1) -> list[int]:
    return [start for start, _ in lexical_ranges(prompt, [(10, len(prompt))], question, budget)]


def test_the_line_of_the_key_that_is_asked_for_is_computed_and_no_other() -> None:
    filler = tuple(range(1000, 1100))
    prompt = (*range(10), *filler[:50], FORM, KEY, FORM, 1, 2, *filler[50:], FORM, OTHER, FORM, 3, 4)
    assert chosen(prompt, (FORM, KEY, FORM)) == [*range(60, 63 + NUM_BEHIND)]


def test_matches_end_with_the_budget_but_for_the_best_one() -> None:
    prompt = tuple(range(10)) + (KEY, 1, 2, 3, 4, 5, 6, 8, 9) * 10
    assert len(chosen(prompt, (KEY,), budget=0.1)) == 1 + NUM_BEHIND
    assert len(chosen(prompt, (KEY,), budget=0.2)) == 3 * (1 + NUM_BEHIND)
    assert chosen(prompt, (77,)) == []
