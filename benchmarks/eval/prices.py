"""What a run costs in money: each token at the price of how it came to be in the cache, or was written. Pure.

    computed    written into the cache     1.25 x the input price
    kept, moved read from the cache        0.1  x
    output      sampled                    5    x

The defaults are the ratios of vendors that sell prompt caching. `base` is the price of a million plain input tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass

from acmserve.bench.eval.completion import Completion
from acmserve.server.options.prices import TokenPrices

_MILLION = 1_000_000
_VENDORS = TokenPrices()


@dataclass(frozen=True, slots=True)
class PriceRatios:
    """What tokens cost, in input prices. `base` is the input price of a million tokens."""

    write: float = _VENDORS.write
    read: float = _VENDORS.read
    output: float = _VENDORS.output
    base: float = 1.0

    def cost(self, completions: Iterable[Completion]) -> float:
        """What completions cost together."""
        return sum(self.cost_of(one.computed, one.kept + one.moved, one.output) for one in completions)

    def cost_of(self, computed: int, cached: int, output: int) -> float:
        """What so many tokens cost."""
        return self.base * (self.write * computed + self.read * cached + self.output * output) / _MILLION


def add_price_options(parser: argparse.ArgumentParser) -> None:
    """Add `--price-write`, `--price-read`, `--price-output` and `--price-base`."""
    prices = PriceRatios()
    for name, what in (("write", "a computed token"), ("read", "a cached token"), ("output", "a sampled token")):
        help_text = f"{what}, in input prices (%(default)s)"
        parser.add_argument(f"--price-{name}", type=_price, default=getattr(prices, name), metavar="X", help=help_text)
    parser.add_argument("--price-base", type=_price, default=prices.base, metavar="X", help="a million input tokens")


def prices_of(options: argparse.Namespace) -> PriceRatios:
    """The prices that the flags give."""
    return PriceRatios(options.price_write, options.price_read, options.price_output, options.price_base)


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 <= price < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no price")
    return price
