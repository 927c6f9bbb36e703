"""What a request computes of text that was served before: old tokens, by its receipt.

A line that no earlier request had is new. So the rest of what was computed is old, and none of it had to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from acmserve.models.smollm2 import prepare
from tests.support.clients import facts
from tests.support.clients.errand import SUMMARY_MARK
from tests.support.clients.matrix import Row, require
from tests.support.clients.recorder import Exchange

MAX_OLD_TOKENS = 200


@cache
def _tokenizer() -> PreTrainedTokenizerBase:
    """That of the model of errands."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(prepare())
    return tokenizer


def check_old_tokens(row: Row, everything: Sequence[Exchange], made: Sequence[Exchange], when: str) -> None:
    """Each of these requests, which stand among all that were recorded, computes few tokens that are old."""
    with row.check("old tokens"):
        require(made, f"{when}: no request was recorded")
        for exchange in made:
            computed = facts.computed_tokens(exchange)
            require(computed is not None, f"{when}: no receipt")
            earlier = [one for one in everything[: everything.index(exchange)] if one.status == 200]
            num_new = len(_tokenizer().encode(facts.new_text(earlier, exchange)))
            old = (computed or 0) - num_new
            require(old <= MAX_OLD_TOKENS, f"{when}: {computed} tokens computed, {num_new} of them new")


def check_summaries(row: Row, exchanges: Sequence[Exchange]) -> None:
    """The client's own requests for a summary, if it made any."""
    everything = facts.asked(exchanges)
    summaries = [one for one in everything if one.status == 200 and SUMMARY_MARK in facts.said(one)]
    if summaries:
        check_old_tokens(row, everything, summaries, "in a summary")
