"""What tokens cost: the setting `prices` of a server. Ratios of vendors stand where it says nothing.

    {"currency": "USD", "input": 3e-6}     -->  dollars: 3e-6 an input token, 1.25 times that to write it into the cache
    not given                              -->  amounts in the price of one input token

It knows no totals, see `budget/savings.py`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from acmserve.errors import InvalidRequest
from acmserve.validation import check_object, echo_json

MAX_CURRENCY_CHARS = 32
MAX_PRICE = 1_000_000


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """`input` is the price of one input token in `currency`. The others are multiples of it.

    `write` is for a token that is computed and stays in the cache, `read` for one that is found there.
    """

    currency: str = "input tokens"
    input: float = 1.0
    write: float = 1.25
    read: float = 0.1
    output: float = 5.0

    def as_dict(self) -> dict[str, Any]:
        """The prices as routes show them."""
        return asdict(self)


def parse_prices(value: object, where: str = "--prices") -> TokenPrices:
    """The prices that an operator wrote. Raises `InvalidRequest`."""
    given = check_object(value, where, [each.name for each in fields(TokenPrices)])
    for name, price in given.items():
        if name == "currency":
            _check_currency(price, f"{where}.{name}")
        else:
            _check_price(price, f"{where}.{name}")
    values: dict[str, Any] = {name: price if name == "currency" else float(price) for name, price in given.items()}
    return TokenPrices(**values)


def _check_currency(value: object, where: str) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_CURRENCY_CHARS or not value.isprintable():
        message = f"must be a text of 1 to {MAX_CURRENCY_CHARS} characters, not {echo_json(value)}."
        raise InvalidRequest(where, message, 'Write a name like "USD".')


def _check_price(value: object, where: str) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= MAX_PRICE:
        message = f"must be a number from 0 to {MAX_PRICE:,}, not {echo_json(value)}."
        raise InvalidRequest(where, message, "Write one like 1.25.")
