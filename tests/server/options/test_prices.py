"""The setting `prices`: vendors' ratios by default, and what is wrong with others is said."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.errors import InvalidRequest
from acmserve.server.options.config import ContextConfig
from acmserve.server.options.prices import TokenPrices, parse_prices


def test_what_is_left_out_has_the_ratios_of_vendors() -> None:
    assert ContextConfig().token_prices == TokenPrices("input tokens", 1.0, 1.25, 0.1, 5.0)
    config = ContextConfig(prices='{"currency": "USD", "input": 3e-6, "write": 2}')
    assert config.token_prices == TokenPrices("USD", 3e-6, 2.0, 0.1, 5.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], r"--prices: must be an object"),
        ({"inputs": 1}, r"--prices\.inputs: unknown key"),
        ({"input": -1}, r"--prices\.input: must be a number from 0 to 1,000,000, not -1"),
        ({"read": float("nan")}, r"--prices\.read: must be a number"),
        ({"write": True}, r"--prices\.write: .* not true"),
        ({"output": 10**400}, r"--prices\.output: .* not a very large number"),
        ({"output": None}, r"--prices\.output: .* not null"),
        ({"currency": ""}, r"--prices\.currency: must be a text"),
        ({"currency": "US\nD"}, r"--prices\.currency: must be a text"),
    ],
)
def test_other_values_are_refused(given: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_prices(given)
