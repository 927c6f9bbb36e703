"""The account of delays: what it allows, that it never starves anybody for good, and what it may hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.errors import IntegrityError
from acmserve.plan.pacing.delay_account import MAX_CREDIT, MAX_DEBT, SILENCE_SECONDS, DelayAccount

seconds = st.floats(0, 100)
events = st.lists(st.tuples(st.sampled_from(("earn", "pay", "end_silence")), seconds), max_size=40)


def after(happened: list[tuple[str, float]]) -> DelayAccount:
    account = DelayAccount(0.03)
    for name, value in happened:
        getattr(account, name)(value)
        account.check_integrity()
    return account


@given(events, st.floats(0, 2))
def test_after_a_silence_whatever_it_costs_is_allowed(happened: list[tuple[str, float]], cost: float) -> None:
    assert after(happened).allowance(DelayAccount.seconds_to(cost) + 1e-6) >= cost


@given(events)
def test_a_silence_saves_nothing(happened: list[tuple[str, float]]) -> None:
    account = after(happened)
    before = account.balance
    account.end_silence(1000.0)
    assert account.balance == max(before, 0.0)


def test_delays_are_a_share_of_the_foregrounds_own_time() -> None:
    """Work that goes on whenever it is allowed: in a thousand turns it costs the share, and one credit or debt."""
    account = DelayAccount(0.03)
    for _ in range(1000):
        account.earn(0.4)
        if account.allowance(SILENCE_SECONDS) > 0:
            account.pay(0.1)
    assert account.delayed <= 0.03 * 1000 * 0.4 + MAX_DEBT
    assert account.delayed >= 0.03 * 1000 * 0.4 - MAX_CREDIT


def test_the_share_of_one_counts_nothing() -> None:
    account = DelayAccount(1.0)
    account.pay(1000.0)
    assert account.is_open
    assert account.allowance(0.0) > 1e9


@pytest.mark.parametrize("balance", [MAX_CREDIT + 0.01, -MAX_DEBT - 0.01])
def test_integrity(balance: float) -> None:
    with pytest.raises(IntegrityError, match="the balance is"):
        DelayAccount(0.03, balance).check_integrity()
    with pytest.raises(IntegrityError, match="delayed"):
        DelayAccount(0.03, delayed=-1.0).check_integrity()
