"""Receipts sum to the prompt whatever the scheduler does to the request."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from acmserve.engine.requests.receipt import KVOrigin, ReceiptBuilder, ReceiptEntry, num_covered
from acmserve.plan.auto import AutoDecision

NUM_PROMPT_TOKENS = 100


@given(
    st.lists(st.tuples(st.integers(0, 99), st.sampled_from(["kept", "moved", "computed", "preempted"])), max_size=12)
)
def test_counts_sum_to_the_prompt(script: list[tuple[int, str]]) -> None:
    receipt_builder = ReceiptBuilder(NUM_PROMPT_TOKENS)
    position = 0
    receipt_builder.admit(0)
    for size, what in script:
        end = min(position + size, NUM_PROMPT_TOKENS - 1)
        if what == "preempted":
            receipt_builder.advance(position)
            position = min(size, position)
            receipt_builder.admit(position)
            continue
        if what != "computed" and end > position:
            receipt_builder.jump([ReceiptEntry(position, end, KVOrigin(what), src_start=position + 7)])
        position = end
    receipt = receipt_builder.close("reuse", None)
    assert receipt.kept_tokens + receipt.moved_tokens + receipt.computed_tokens == NUM_PROMPT_TOKENS
    assert min(receipt.kept_tokens, receipt.moved_tokens, receipt.computed_tokens) >= 0
    assert sum(num_tokens for _, _, num_tokens in receipt.moves) == receipt.moved_tokens


def test_neighbouring_moves_of_one_distance_are_one() -> None:
    receipt_builder = ReceiptBuilder(NUM_PROMPT_TOKENS)
    receipt_builder.admit(10)
    receipt_builder.jump(
        [
            ReceiptEntry(10, 20, KVOrigin.MOVED, 50),
            ReceiptEntry(20, 30, KVOrigin.MOVED, 60),
            ReceiptEntry(30, 40, KVOrigin.MOVED, 80),
        ]
    )
    receipt = receipt_builder.close("reuse", None)
    assert receipt.moves == ((10, 50, 20), (30, 80, 10))
    assert (receipt.kept_tokens, receipt.moved_tokens, receipt.computed_tokens) == (10, 30, 60)


def test_what_was_computed_ahead_is_part_of_what_was_kept() -> None:
    """Spans survive a preemption as far as their tokens do, and count once."""
    receipt_builder = ReceiptBuilder(NUM_PROMPT_TOKENS)
    receipt_builder.admit(48, precompute=[(16, 32), (32, 48)])
    receipt_builder.jump([ReceiptEntry(48, 60, KVOrigin.KEPT)])
    receipt_builder.add_precomputed([(50, 60)])
    receipt = receipt_builder.close("exact", None)
    assert (receipt.kept_tokens, receipt.precomputed_tokens) == (60, 42)
    receipt_builder.advance(70)
    receipt_builder.admit(32, precompute=[(16, 32)])
    receipt = receipt_builder.close("exact", None)
    assert (receipt.kept_tokens, receipt.precomputed_tokens, receipt.computed_tokens) == (32, 16, 68)


def test_a_receipt_that_ends_early_is_about_what_is_ready() -> None:
    receipt_builder = ReceiptBuilder(NUM_PROMPT_TOKENS)
    receipt_builder.admit(16)
    receipt_builder.advance(64)
    receipt_builder.end_here()
    receipt = receipt_builder.close("exact", "precompute_pool_share")
    assert (receipt.prompt_tokens, receipt.kept_tokens, receipt.computed_tokens) == (64, 16, 48)


def test_what_is_computed_for_fidelitys_sake_is_part_of_what_is_computed() -> None:
    """But for what was found in the cache after all, or was evicted and could not have been moved."""
    receipt_builder = ReceiptBuilder(NUM_PROMPT_TOKENS)
    receipt_builder.admit(16)
    receipt_builder.jump([ReceiptEntry(40, 60, KVOrigin.MOVED, 50)])
    receipt = receipt_builder.close("auto", None, anew=[(10, 30), (60, 70)], choice=AutoDecision("repair", "because"))
    assert (receipt.repaired_tokens, receipt.computed_tokens) == (24, 64)
    assert (receipt.fidelity, receipt.chosen, receipt.reason) == ("auto", "repair", "because")


def test_what_was_computed_before_a_preemption_stays_computed() -> None:
    receipt_builder = ReceiptBuilder(NUM_PROMPT_TOKENS)
    receipt_builder.admit(16)
    receipt_builder.jump([ReceiptEntry(16, 30, KVOrigin.MOVED, 50)])
    receipt_builder.advance(90)
    receipt_builder.admit(64)
    receipt = receipt_builder.close("reuse", None)
    assert (receipt.kept_tokens, receipt.moved_tokens, receipt.computed_tokens) == (16, 14, 70)


def test_loaded_tokens_are_kept_or_moved_ones_each_counted_once() -> None:
    builder = ReceiptBuilder(NUM_PROMPT_TOKENS)
    builder.add_loaded([(0, 8), (12, 40), (4, 16), (60, 70)])
    builder.admit(10)
    builder.jump([ReceiptEntry(14, 20, KVOrigin.MOVED, 50)])
    receipt = builder.close("reuse", None)
    assert (receipt.kept_tokens, receipt.moved_tokens) == (10, 6)
    assert receipt.loaded_tokens == 16, "what came back for tokens that were computed after all is in no count"


def test_the_answer_has_the_documented_fields() -> None:
    receipt_builder = ReceiptBuilder(NUM_PROMPT_TOKENS)
    receipt_builder.admit(10)
    receipt_builder.jump([ReceiptEntry(10, 20, KVOrigin.MOVED, 50)])
    assert receipt_builder.close("reuse", "source_evicted").as_dict() == {
        "fidelity": "reuse",
        "prompt_tokens": 100,
        "kept_tokens": 10,
        "moved_tokens": 10,
        "computed_tokens": 80,
        "precomputed_tokens": 0,
        "loaded_tokens": 0,
        "repaired_tokens": 0,
        "chosen": None,
        "reason": None,
        "moves": [{"dst_start": 10, "src_start": 50, "num_tokens": 10}],
        "fallback_reason": "source_evicted",
        "edit_boundaries": None,
        "transition_norm": None,
    }


spans = st.lists(st.integers(0, 200), unique=True, max_size=20).map(sorted)


@given(spans, st.integers(0, 200), st.integers(0, 200))
def test_what_entries_cover_is_counted_as_one_by_one(ends: list[int], start: int, num_tokens: int) -> None:
    end = start + num_tokens
    pairs = list(zip(ends[::2], ends[1::2], strict=False))
    entries = [ReceiptEntry(first, last, KVOrigin.KEPT) for first, last in pairs]
    covered = {token for first, last in pairs for token in range(first, last)}
    assert num_covered(entries, start, end) == len(covered & set(range(start, end)))


def test_thousands_of_segments_do_not_look_at_thousands_of_entries_each() -> None:
    """A receipt of a prompt in many pieces is closed in the scheduler's thread."""
    num_looks = 0

    class Looked(ReceiptEntry):
        def __getattribute__(self, name: str) -> Any:
            nonlocal num_looks
            num_looks += name == "end"
            return super().__getattribute__(name)

    entries = [Looked(start, start + 5, KVOrigin.MOVED) for start in range(0, 40_000, 10)]
    assert [num_covered(entries, start, start + 10) for start in range(0, 40_000, 10)] == [5] * 4_000
    assert num_looks < 20 * 4_000
