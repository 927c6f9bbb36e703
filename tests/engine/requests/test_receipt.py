"""Receipts sum to the prompt whatever the scheduler does to the request."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acmserve.engine.requests.receipt import Account, Entry, Origin
from acmserve.plan.auto import Choice

NUM_PROMPT_TOKENS = 100


@given(
    st.lists(st.tuples(st.integers(0, 99), st.sampled_from(["kept", "moved", "computed", "preempted"])), max_size=12)
)
def test_counts_sum_to_the_prompt(script: list[tuple[int, str]]) -> None:
    account = Account(NUM_PROMPT_TOKENS)
    position = 0
    account.admit(0)
    for size, what in script:
        end = min(position + size, NUM_PROMPT_TOKENS - 1)
        if what == "preempted":
            account.advance(position)
            position = min(size, position)
            account.admit(position)
            continue
        if what != "computed" and end > position:
            account.jump([Entry(position, end, Origin(what), src_start=position + 7)])
        position = end
    receipt = account.close("reuse", None)
    assert receipt.kept_tokens + receipt.moved_tokens + receipt.computed_tokens == NUM_PROMPT_TOKENS
    assert min(receipt.kept_tokens, receipt.moved_tokens, receipt.computed_tokens) >= 0
    assert sum(num_tokens for _, _, num_tokens in receipt.moves) == receipt.moved_tokens


def test_neighbouring_moves_of_one_distance_are_one() -> None:
    account = Account(NUM_PROMPT_TOKENS)
    account.admit(10)
    account.jump([Entry(10, 20, Origin.MOVED, 50), Entry(20, 30, Origin.MOVED, 60), Entry(30, 40, Origin.MOVED, 80)])
    receipt = account.close("reuse", None)
    assert receipt.moves == ((10, 50, 20), (30, 80, 10))
    assert (receipt.kept_tokens, receipt.moved_tokens, receipt.computed_tokens) == (10, 30, 60)


def test_what_was_computed_ahead_is_part_of_what_was_kept() -> None:
    """Spans survive a preemption as far as their tokens do, and count once."""
    account = Account(NUM_PROMPT_TOKENS)
    account.admit(48, ahead=[(16, 32), (32, 48)])
    account.jump([Entry(48, 60, Origin.KEPT)])
    account.add_ahead([(50, 60)])
    receipt = account.close("exact", None)
    assert (receipt.kept_tokens, receipt.ahead_tokens) == (60, 42)
    account.advance(70)
    account.admit(32, ahead=[(16, 32)])
    receipt = account.close("exact", None)
    assert (receipt.kept_tokens, receipt.ahead_tokens, receipt.computed_tokens) == (32, 16, 68)


def test_a_receipt_that_ends_early_is_about_what_is_ready() -> None:
    account = Account(NUM_PROMPT_TOKENS)
    account.admit(16)
    account.advance(64)
    account.end_here()
    receipt = account.close("exact", "ahead_pool_share")
    assert (receipt.prompt_tokens, receipt.kept_tokens, receipt.computed_tokens) == (64, 16, 48)


def test_what_is_computed_for_fidelitys_sake_is_part_of_what_is_computed() -> None:
    """But for what was found in the cache after all, or was evicted and could not have been moved."""
    account = Account(NUM_PROMPT_TOKENS)
    account.admit(16)
    account.jump([Entry(40, 60, Origin.MOVED, 50)])
    receipt = account.close("auto", None, anew=[(10, 30), (60, 70)], choice=Choice("repair", "because"))
    assert (receipt.repaired_tokens, receipt.computed_tokens) == (24, 64)
    assert (receipt.fidelity, receipt.chosen, receipt.reason) == ("auto", "repair", "because")


def test_what_was_computed_before_a_preemption_stays_computed() -> None:
    account = Account(NUM_PROMPT_TOKENS)
    account.admit(16)
    account.jump([Entry(16, 30, Origin.MOVED, 50)])
    account.advance(90)
    account.admit(64)
    receipt = account.close("reuse", None)
    assert (receipt.kept_tokens, receipt.moved_tokens, receipt.computed_tokens) == (16, 14, 70)


def test_the_answer_has_the_documented_fields() -> None:
    account = Account(NUM_PROMPT_TOKENS)
    account.admit(10)
    account.jump([Entry(10, 20, Origin.MOVED, 50)])
    assert account.close("reuse", "source_evicted").as_dict() == {
        "fidelity": "reuse",
        "prompt_tokens": 100,
        "kept_tokens": 10,
        "moved_tokens": 10,
        "computed_tokens": 80,
        "ahead_tokens": 0,
        "repaired_tokens": 0,
        "chosen": None,
        "reason": None,
        "moves": [{"dst_start": 10, "src_start": 50, "num_tokens": 10}],
        "fallback_reason": "source_evicted",
    }
