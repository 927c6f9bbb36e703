"""What is to be forgotten: numbered, and bounded for each API key, so that nobody pushes out a redaction of another."""

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
    assert pending.num_pending == 4
    assert sum(map(len, pending._recent.values())) == 4


def test_one_that_comes_again_is_the_last() -> None:
    pending = PendingForgets(max_per_account=2)
    for name in ("x", "y", "x", "z"):
        pending.add(("a", name))
    assert [(("a", name) in pending) for name in ("x", "y", "z")] == [True, False, True]


def test_nothing_is_pending_after_the_acknowledgement() -> None:
    pending = PendingForgets(max_per_account=2)
    pending.add(("a", "x"))
    pending.acknowledge(("a", "x"), pending.num_removals)
    pending.acknowledge(("b", "never there"), pending.num_removals)
    assert ("a", "x") not in pending
    assert (pending.num_pending, pending._pending) == (0, {})


def test_a_request_from_before_acknowledges_nothing_and_brings_the_text_back() -> None:
    pending = PendingForgets(max_per_account=2)
    num_seen = pending.num_removals
    pending.add(("a", "x"))
    pending.acknowledge(("a", "x"), num_seen)
    assert ("a", "x") in pending
    pending.acknowledge(("a", "x"), pending.num_removals)
    pending.send(("a", "x"), pending.num_removals)
    pending.send(("a", "other"), num_seen)
    assert pending.num_pending == 0
    pending.send(("a", "x"), num_seen)
    assert ("a", "x") in pending
