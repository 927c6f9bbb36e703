"""What a task can show: a model that guesses, or knows nothing, loses nothing by an edit. No table says it did."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.bench.agent.estimates import bootstrap_interval, bounded_interval
from acmserve.bench.eval.completion import read_answer
from acmserve.bench.eval.prices import PriceRatios
from acmserve.bench.eval.summary import summarise
from acmserve.bench.eval.table import AMOUNT_TABLE, TASK_EVIDENCE
from acmserve.bench.eval.task_evidence import (
    GAIN,
    LOSS,
    NOTHING,
    alike_ways,
    best_of,
    compare_ways,
    computed_beside_baseline,
    cost_beside_baseline,
    differences_of,
    over_budget,
    removals_of,
    shown_by_task,
    told_apart,
    within_budget,
    worst_of,
)
from acmserve.bench.eval.tasks.registry import TASKS
from acmserve.bench.report.sections.evaluations.evaluated_agents import _maps_alike
from acmserve.bench.report.sections.evaluations.evaluation import _answer, _budgets, _cut

BASELINES = {"reads": "baseline", "budget:cwl": "reads"} | dict.fromkeys(
    ("baseline", "rag", "tools", "shared"), "baseline"
)
Scores = dict[str, tuple[int, int]]
"""By way: how many samples are right, and of how many."""


def record(task: str, way: str, number: int, score: float, computed: int) -> dict[str, Any]:
    told = {"setting": "", "error": "", "unmet": False, "num_errors": 0, "tools": {}, "seconds": 1.0, "update": None}
    counts = {"completions": [[0, 0, computed, 1]]}
    return {"task": task, "sample": str(number), "way": way, "score": score, **told, **counts}


def rows(**tasks: Scores) -> list[dict[str, Any]]:
    computed = {"baseline": 100, "reads": 200, "budget:cwl": 120, "rag": 40, "tools": 300, "shared": 110}
    records = [
        record(task.replace("_", "-"), way, number, float(number < right), computed[way])
        for task, scores in tasks.items()
        for way, (right, num) in scores.items()
        for number in range(num)
    ]
    return summarise(records, BASELINES, PriceRatios())


@pytest.mark.parametrize(
    ("task", "whole", "way", "shown"),
    [
        ("pi_llm", 0, 0, NOTHING),
        ("pi_llm", 1, 0, NOTHING),
        ("pi_llm", 0, 10, GAIN),
        ("pi_llm", 3, 0, GAIN),
        ("pi_llm", 6, 0, LOSS),
        ("longbench_v2", 8, 8, GAIN),
        ("longbench_v2", 12, 0, GAIN),
        ("longbench_v2", 20, 0, LOSS),
    ],
)
def test_a_loss_shows_where_the_whole_context_is_better_than_a_guess(
    task: str, whole: int, way: int, shown: str
) -> None:
    """32 samples. One of 32 is at the floor, three may be, and eight are what a guess among four gets."""
    assert shown_by_task(rows(**{task: {"baseline": (whole, 32), "rag": (way, 32)}})) == {task.replace("_", "-"): shown}


def test_guesses_are_those_of_the_choices_that_a_question_names() -> None:
    named = {name: round(task.guess, 3) for name, task in TASKS.items() if task.guess}
    assert named == {"oolong": 0.208, "babilong": 0.167, "longbench-v2": 0.25}


def test_a_way_is_compared_where_its_own_baseline_can_lose() -> None:
    """Budgets lose what `reads` had, and the zeros of other tasks make no loss smaller."""
    found = rows(
        frames={"baseline": (16, 16), "reads": (0, 16), "budget:cwl": (0, 16), "rag": (8, 16)},
        pi_llm={"baseline": (0, 16), "reads": (0, 16), "budget:cwl": (0, 16), "rag": (0, 16)},
    )
    [rag] = compare_ways(found)
    assert (rag.way, rag.num_samples, rag.difference) == ("rag", 16, -0.5)
    together = {one.way: one for one in differences_of(found)}
    assert together["rag"].difference == -0.25
    assert together["budget:cwl"].difference == 0
    assert best_of(compare_ways(found)) == worst_of(compare_ways(found)) == rag
    assert best_of([]) is best_of([rag], least=0.0) is None
    assert worst_of([rag], most=0.0) is rag


def test_a_way_by_tools_that_nobody_called_edited_nothing() -> None:
    found = rows(frames={"baseline": (16, 16), "rag": (8, 16), "tools": (0, 16)})
    assert [one.way for one in compare_ways(found)] == ["rag"]
    next(row for row in found if row["way"] == "tools")["tools"] = {"fold_fragment": 1}
    assert worst_of(compare_ways(found)) == worst_of(differences_of(found))
    assert [one.way for one in compare_ways(found)] == ["rag", "tools"]


def test_what_takes_text_out_are_ways_of_acmserve() -> None:
    """One that adds to a context does not, nor do baselines of papers."""
    found = rows(oolong=dict.fromkeys(BASELINES, (4, 16)))
    assert {one.way for one in differences_of(found)} == {"budget:cwl", "rag", "shared"}
    assert [one.way for one in removals_of(found)] == ["budget:cwl"]


def test_a_way_that_plays_no_task_with_answers_to_lose_is_not_the_worst() -> None:
    """The page says that OOLONG can show no loss here, so what `shared` loses there are guesses."""
    found = rows(oolong={"baseline": (8, 60), "shared": (0, 60)}, frames={"baseline": (16, 16), "rag": (4, 16)})
    told = _answer({"rows": found})
    assert "The worst of 1 that can lose is `rag` -75.0 [" in told
    assert "Below zero by their intervals: `rag`. Of tasks that can show no loss: `shared`." in told


def test_intervals_of_tasks_are_put_together() -> None:
    """Of two tasks alike it is about that of all their samples, which is narrower than that of one."""
    alike: Scores = {"baseline": (24, 32), "rag": (12, 32)}
    [rag] = compare_ways(rows(frames=alike, pi_llm=alike))
    less = [-1.0] * 24 + [0.0] * 40
    low, high = bootstrap_interval(less, lambda values: sum(values) / len(values))
    assert rag.interval == pytest.approx((low, high), abs=0.02)
    [alone] = compare_ways(rows(frames=alike))
    assert alone.interval is not None
    assert alone.interval[1] - alone.interval[0] > 1.3 * (high - low)
    assert bounded_interval([1.0] * 24 + [0.0] * 8, 0, 1)[0] > 0.5


def test_a_difference_without_an_interval_is_neither_best_nor_worst() -> None:
    one: Scores = {"baseline": (1, 1), "rag": (0, 1)}
    [rag] = compare_ways(rows(frames=one))
    assert (rag.difference, rag.interval) == (-1.0, None)
    assert best_of([rag]) is worst_of([rag]) is None


def test_tokens_are_beside_the_baseline_on_as_many_samples_of_the_same_tasks() -> None:
    """The way has fewer samples, and its updates read as much again as it computes."""
    found = rows(frames={"baseline": (0, 8), "reads": (0, 8), "budget:cwl": (0, 4), "rag": (0, 8)})
    assert computed_beside_baseline(found, "rag") == 0.4
    assert computed_beside_baseline(found, "budget:cwl") == 0.6
    assert cost_beside_baseline(found, "budget:cwl") == pytest.approx((1.25 * 120 + 5) / (1.25 * 200 + 5))
    for row in found:
        row["update_tokens"] = [480, 10] if row["way"] == "budget:cwl" and row["task"] == "frames" else None
    assert computed_beside_baseline(found, "budget:cwl") == 1.2
    assert computed_beside_baseline(found, "map") is None


def _unmet(found: list[dict[str, Any]], way: str, task: str, num: int) -> list[dict[str, Any]]:
    """The rows, where a way was over its budget so often in a task."""
    return [row | {"num_unmet": num} if (row["way"], row["task"]) == (way, task) else row for row in found]


@pytest.mark.parametrize(("num", "best"), [(8, "budget:cwl"), (9, "rag")])
def test_a_way_over_its_budget_in_most_samples_of_a_task_is_not_named_best(num: int, best: str) -> None:
    """Half of sixteen samples are not most of them: the same record is best with one sample less over its budget."""
    told: Scores = {"baseline": (8, 16), "reads": (4, 16), "budget:cwl": (16, 16), "rag": (10, 16)}
    found = _unmet(rows(frames=told, pi_llm=told), "budget:cwl", "pi-llm", num)
    named = best_of(within_budget(differences_of(found), found))
    assert named is not None
    assert named.way == best
    assert over_budget(found) == ([] if best == "budget:cwl" else ["budget:cwl"])
    said = _answer({"rows": found})
    assert f"`{best}`" in said.partition(" points is the best of ")[0]
    assert ("One is left out, over budget in most samples of a task." in said) is (best == "rag")
    assert f"is the best of {1 if best == 'rag' else 2} ways." in said
    assert ("so never the best: `budget:cwl`." in _budgets({"rows": found})) is (best == "rag")
    by_task = {cells[0]: cells[5] for cells in TASK_EVIDENCE.rows({"rows": found})}
    assert by_task["`frames`"].startswith("`budget:cwl`")
    assert by_task["`pi-llm`"].startswith(f"`{best}`")


def test_ways_that_nothing_tells_apart_count_as_one() -> None:
    """A single token more in a single task tells them apart."""
    found = rows(frames={"baseline": (8, 16), "rag": (9, 16)}, pi_llm={"baseline": (8, 16), "rag": (9, 16)})
    found += [row | {"way": "memagent"} for row in found if row["way"] == "rag"]
    assert alike_ways(found) == [("rag", "memagent")]
    assert [one.way for one in told_apart(differences_of(found), found)] == ["rag"]
    assert "is the best of 1 ways." in _answer({"rows": found})
    assert "`rag` and `memagent` came to the same tokens and scores in every task." in _budgets({"rows": found})
    assert _maps_alike({"rows": found}).endswith("What they change was never used.")
    last = next(row for row in found if (row["way"], row["task"]) == ("memagent", "pi-llm"))
    last["output_tokens"] += 1
    assert alike_ways(found) == []
    assert len(told_apart(differences_of(found), found)) == 2
    assert "came to the same tokens" not in _budgets({"rows": found})
    assert _maps_alike({"rows": found}) == ""


@pytest.mark.parametrize(("output", "is_told"), [(64, True), (58, True), (57, False)])
def test_answers_that_end_at_their_bound_are_told(output: int, is_told: bool) -> None:
    """Of 64 tokens nine tenths are 57.6. A result that counts them is believed instead of the mean."""
    found = [row | {"output_tokens": 16 * output} for row in rows(frames={"baseline": (8, 16), "rag": (8, 16)})]
    told = _cut({"rows": found, "max_tokens": 64})
    assert (f"answers come close to that, by their mean: `frames` {output}." in told) is is_told
    for num, said in ((0, ""), (3, " With the whole context answers were cut at 64 tokens: `frames` 3 of 16.")):
        counted = [row | {"num_cut": num} for row in found]
        assert _cut({"rows": counted, "max_tokens": 64}) == f"An answer has at most 64 tokens.{said}"


def test_cut_answers_are_counted_where_each_tells_it() -> None:
    held = [record("frames", "rag", number, 1.0, 9) | {"cut": number < 3} for number in range(5)]
    (row,) = summarise(held, {"rag": "baseline"}, PriceRatios())
    assert row["num_cut"] == 3
    del held[0]["cut"]
    (row,) = summarise(held, {"rag": "baseline"}, PriceRatios())
    assert "num_cut" not in row
    payload = {"choices": [{"message": {"content": "a"}, "finish_reason": "length"}]}
    assert read_answer(payload).is_cut is True
    payload["choices"][0]["finish_reason"] = "stop"
    assert read_answer(payload).is_cut is False
    assert read_answer({"choices": [{"message": {"content": "a"}}]}).is_cut is None


def test_tokens_time_and_money_are_told_for_each_way() -> None:
    """By hand: 16 samples of 100 computed tokens and one written. Each costs 1.25 of a token and 5, at any base."""
    found = rows(frames={"baseline": (8, 16)})
    for base in (1.0, 3.0):
        priced = [row | {"cost": base * row["cost"], "kept_tokens": 32} for row in found]
        (cells,) = AMOUNT_TABLE.rows({"rows": priced, "prices": {"base": base}})
        assert cells == ["`baseline`", "100", "2", "0", "100", "1", "1.0", "130"]
    (cells,) = AMOUNT_TABLE.rows({"rows": priced, "prices": {"base": 0.0}})
    assert cells[-1] == "-", "tokens that cost nothing have no price to tell it in"
