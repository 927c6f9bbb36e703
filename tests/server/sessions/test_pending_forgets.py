"""What is to be forgotten: bounded for each API key, so that nobody pushes out a redaction of another."""

from __future__ import annotations

from acmserve.server.sessions.pending_forgets import PendingForgets


def test_an_account_pushes_out_its_own_oldest() -> None:
    pending = PendingForgets(max_per_account=3)
    pending.add(("a/salt", "mine"))
    for number in range(1000):
        pending.add(("b/" + str(number), f"s{number}"))
    assert ("a/salt", "mine") in pending
    assert ("b/999", "s999") in pending
    assert ("b/996", "s996") not in pending
    assert len(pending) == 4


def test_one_that_comes_again_is_the_last() -> None:
    pending = PendingForgets(max_per_account=2)
    for name in ("x", "y", "x", "z"):
        pending.add(("a", name))
    assert [(("a", name) in pending) for name in ("x", "y", "z")] == [True, False, True]


def test_nothing_is_left_of_what_was_forgotten() -> None:
    pending = PendingForgets(max_per_account=2)
    pending.add(("a", "x"))
    pending.discard(("a", "x"))
    pending.discard(("b", "never there"))
    assert ("a", "x") not in pending
    assert (len(pending), pending._accounts) == (0, {})
