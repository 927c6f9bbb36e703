"""Live requests by id and by owner, and one that has ended without being removed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from acmserve.engine.requests.live_requests import LiveRequests
from acmserve.engine.requests.receipt import ReceiptBuilder
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.errors import IntegrityError
from acmserve.plan.owner import Owner


def _add(live: LiveRequests, request_id: str, session_id: str, is_finished: bool = False) -> Any:
    session = SessionRequest(request_id, Owner(session_id), "exact", ReceiptBuilder(1), np.zeros(1, dtype=np.int32))
    request: Any = SimpleNamespace(request_id=request_id, is_finished=lambda: is_finished)
    live.add(session, request)
    return request


def test_requests_are_found_by_owner() -> None:
    live = LiveRequests()
    first, other = _add(live, "a", "s"), _add(live, "b", "t")
    assert [request for _, request in live.of_session(Owner("s"))] == [first]
    assert live.of_others(Owner("s")) == [other]
    assert live.get("c") is None
    removed = live.remove("a")
    assert removed is not None
    assert (removed.session_id, live.remove("a"), len(live)) == ("s", None, 1)
    live.check_integrity()


def test_a_finished_request_is_noticed() -> None:
    live = LiveRequests()
    _add(live, "a", "s", is_finished=True)
    with pytest.raises(IntegrityError, match="1 finished"):
        live.check_integrity()
