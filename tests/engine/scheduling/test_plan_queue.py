"""The planning thread: whose plan is next, which are not wanted any more, and a queue that lost one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from acmserve.engine.requests.request_plan import RequestPlan
from acmserve.engine.scheduling.plan_queue import PlanQueue
from acmserve.errors import IntegrityError


class Planner:
    """Makes plans in the order in which the queue asks for them, each when it may."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.may_go_on = threading.Event()
        self.has_begun = threading.Event()
        self.queue = PlanQueue(self.make)

    def make(self, inputs: Any) -> RequestPlan:
        self.has_begun.set()
        self.may_go_on.wait()
        self.made.append(inputs.request.request_id)
        return RequestPlan(fallback_reason=inputs.request.request_id)

    def add(self, account: str, request_id: str) -> None:
        inputs: Any = SimpleNamespace(request=SimpleNamespace(request_id=request_id))
        self.queue.add(account, inputs)

    def finish(self) -> list[tuple[str, RequestPlan]]:
        """Let all plans be made, and take them."""
        self.may_go_on.set()
        for future in list(self.queue._futures):
            future.result()
        return self.queue.take_done()


@pytest.fixture
def planner() -> Iterator[Planner]:
    planner = Planner()
    yield planner
    planner.may_go_on.set()
    planner.queue.stop()


def test_accounts_take_turns(planner: Planner) -> None:
    planner.add("a", "a1")
    planner.has_begun.wait()
    for request_id in ("a2", "a3"):
        planner.add("a", request_id)
    planner.add("b", "b1")
    plans = planner.finish()
    assert planner.made == ["a1", "a2", "b1", "a3"], "the first plan of a was begun when b came"
    assert [(name, plan.fallback_reason) for name, plan in plans] == [(name, name) for name in planner.made]
    assert len(planner.queue) == 0


def test_nothing_is_taken_before_it_is_ready(planner: Planner) -> None:
    planner.add("a", "a1")
    assert planner.queue.take_done() == []
    planner.queue.check_integrity()
    assert len(planner.queue) == 1
    assert [name for name, _ in planner.finish()] == ["a1"]


def test_a_plan_that_nobody_wants_is_not_made(planner: Planner) -> None:
    """But for the one that is in the making. Its result goes nowhere."""
    for request_id in ("a1", "a2", "a3"):
        planner.add("a", request_id)
    planner.has_begun.wait()
    assert planner.queue.cancel("a1")
    assert planner.queue.cancel("a2")
    assert not planner.queue.cancel("a2")
    assert [name for name, _ in planner.finish()] == ["a3"]
    assert planner.made == ["a1", "a3"]
    planner.queue.check_integrity()


def test_a_lost_plan_is_noticed(planner: Planner) -> None:
    planner.add("a", "a1")
    planner.add("a", "a2")
    planner.has_begun.wait()
    planner.queue._waiting.clear()
    with pytest.raises(IntegrityError, match="nobody plans"):
        planner.queue.check_integrity()
    planner.queue._futures.pop().cancel()
