"""The demo claims what was measured, and no gain where nothing was moved."""

from __future__ import annotations

from dataclasses import replace

from acmserve.bench.demo.table import Cost, TurnCosts, as_rows, result_sentence

EXACT = Cost(470, 0, 3_385, 2.4, "the same answer")
STOCK = Cost(384, 0, 3_471, 2.5, "the same answer")
APPEND = Cost(3_747, 0, 108, 0.2, "the same answer")


def fold(reuse: Cost) -> TurnCosts:
    costs = {"reuse": reuse, "exact": EXACT, "stock engine": STOCK, "plain append": APPEND}
    return TurnCosts(2, "fold", "What now?", 3_855, 108, costs)


def test_the_result_is_the_fold_beside_the_stock_engine_and_the_append() -> None:
    sentence = result_sentence([fold(Cost(470, 3_277, 108, 0.25, "an answer"))])
    assert "moved 3,277 tokens and gave its first token in 0.25 s" in sentence
    assert "10.0 times sooner than the stock engine (2.50 s)" in sentence
    assert "1.25 times a plain append (0.20 s)" in sentence
    assert sentence.endswith("exact answered word for word like the stock engine in every turn.")


def test_an_exact_answer_that_is_not_the_stock_engines_is_called_a_defect() -> None:
    turn = fold(Cost(470, 3_277, 108, 0.25, "an answer"))
    turn.costs["exact"] = replace(EXACT, answer="another answer")
    assert "exact answered otherwise than the stock engine in turn 2, which is a defect" in result_sentence([turn])


def test_no_gain_is_claimed_when_nothing_was_moved() -> None:
    refused = Cost(470, 0, 3_385, 2.4, "an answer", fallback_reason="rope: dynamic NTK is not additive")
    sentence = result_sentence([fold(refused)])
    assert "nothing was moved (rope: dynamic NTK is not additive)" in sentence
    assert "sooner" not in sentence


def test_rows_show_every_sequence_with_its_counts_and_why_a_move_was_refused() -> None:
    rows = as_rows(fold(Cost(470, 0, 3_385, 2.4, "an answer " * 20, fallback_reason="alibi")))
    assert rows[0] == "turn 2, fold: 3,855 prompt tokens, 108 new"
    assert [row.split()[0] for row in rows[3:]] == ["reuse", "(nothing", "exact", "stock", "plain"]
    assert "470       0     3,385" in rows[3]
    assert max(len(row) for row in rows) <= 110
