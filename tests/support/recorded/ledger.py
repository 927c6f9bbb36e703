"""The ledger of the committed results, once for each process: git needs seconds to find it."""

from __future__ import annotations

from functools import cache

from acmserve.bench.report.ledger import LedgerRow, read_ledger


@cache
def _rows() -> dict[str, LedgerRow]:
    return read_ledger()


def committed_ledger() -> dict[str, LedgerRow]:
    """Its rows, in a dictionary that the caller may change."""
    return dict(_rows())
