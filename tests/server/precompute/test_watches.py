"""When a session's client may be back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from acmserve.context.eviction.clear_tool_uses import ClearToolUses
from acmserve.context.session.state import SessionState
from acmserve.server.precompute import watches
from acmserve.server.precompute.background_request import RequestFrame, frame_of
from acmserve.server.precompute.watches import GONE_SECONDS, NUM_PAUSES, QUIET_SECONDS, Watch, Watches


def came_back(watch: Watch, pauses: list[float]) -> float:
    """The client pauses so. The result is the time of its last answer."""
    watch.was_served = True
    for pause in pauses:
        watch.note_back(watch.heard + pause)
        watch.heard += pause
    return watch.heard


@pytest.mark.parametrize(("pause", "look", "is_met"), [(0.05, 0.04, True), (2.0, 0.04, False), (0.05, 0.0, False)])
def test_a_client_that_comes_at_once_is_not_planned_for_on_its_way(pause: float, look: float, is_met: bool) -> None:
    """Neither where looks take no time, nor where the client makes a pause. After a silence it is looked at."""
    watch = Watch(wants_look=True)
    now = came_back(watch, [pause] * NUM_PAUSES)
    watch.look_seconds.append(look)
    assert watch.may_be_met(now + 0.02) is is_met
    assert not watch.may_be_met(now + 1.0)
    watch.wants_look = False
    assert not watch.may_be_met(now + 0.02)


@pytest.mark.parametrize(("pause", "wait"), [(2.0, QUIET_SECONDS), (0.05, GONE_SECONDS)])
def test_others_are_waited_for(pause: float, wait: float) -> None:
    found = Watches()
    watch = found.hear(("", "s"), 0.0)
    now = came_back(watch, [pause] * NUM_PAUSES)
    assert found.others_may_be_back(("", "t"), now + wait - 0.01)
    assert not found.others_may_be_back(("", "t"), now + wait + 0.01)
    assert not found.others_may_be_back(("", "s"), now)
    assert found.forget(("", "s")) is watch
    assert found.get(("", "s")) is None


def test_the_watches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "MAX_WATCHED", 3)
    found = Watches()
    for number in range(5):
        found.hear(("", f"s{number}"), float(number))
    assert [found.get(("", f"s{number}")) is None for number in range(5)] == [True, True, False, False, False]


def test_the_sessions_of_one_key_push_out_none_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is pushed out is ended, and who asks for a preparation of it hears so."""
    monkeypatch.setattr(watches, "MAX_WATCHED", 8)
    found = Watches()
    kept = found.hear(("quiet", "s"), 0.0)
    pushed = found.hear(("loud", "s0"), 0.5)
    made = pushed.preparations.add(SessionState(), 1)
    for number in range(1, 50):
        found.hear(("loud/salt", f"s{number}"), float(number))
    assert found.get(("quiet", "s")) is kept
    assert found.get(("loud", "s0")) is None
    assert (made.status, made.reason) == ("dropped", "interrupted")
    assert found.get(("loud/salt", "s49")) is not None
    assert found.others_may_be_back(("quiet", "s"), 49.0)
    assert len(found) <= 8


def kept(found: Watches, session_id: str, body: Mapping[str, Any], tenant: str = "") -> RequestFrame:
    """What is kept of a session's request."""
    key = (tenant, session_id)
    watch = found.hear(key, 0.0)
    found.keep(key, frame_of(body), ())
    return watch.frame


def test_what_clients_say_beside_their_messages_is_bounded_in_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template passes over arguments that it does not know, so they may be as long as a body."""
    monkeypatch.setattr(watches, "MAX_BYTES", 100_000)
    found = Watches()
    kept(found, "s", {"model": "m", "chat_template_kwargs": {"enable_thinking": False}}, "quiet")
    for number in range(50):
        body = {"chat_template_kwargs": {"unknown": "x" * 20_000}, "tools": [{"name": "y" * 100}]}
        assert kept(found, f"s{number}", body, f"loud/{number}") == frame_of(body)
        assert found.num_bytes <= 100_000
    assert found.get(("quiet", "s")) is not None
    assert found.get(("loud/48", "s48")) is not None
    edits = (ClearToolUses(exclude_tools=frozenset({"z" * 40_000})),)
    found.keep(("quiet", "s"), frame_of({}), edits)
    assert found.num_bytes <= 100_000
    watch = found.get(("quiet", "s"))
    assert watch is not None
    assert watch.edits == edits
    found.forget(("quiet", "s"))
    assert found.num_bytes < 60_000


def test_sessions_share_tools_that_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that watches a thousand sessions of one agent keeps its tools once."""

    def tools(name: str) -> list[dict[str, str]]:
        return [{"type": "function", "name": name}]

    found = Watches()
    first, second = (kept(found, f"s-{salt}", {"tools": tools("read"), "cache_salt": salt}) for salt in "ab")
    assert first.fields["tools"] is second.fields["tools"]
    assert [frame.fields["cache_salt"] for frame in (first, second)] == ["a", "b"]
    others = [kept(found, f"s-{n}", {"tools": tools(f"read-{n}")}) for n in range(watches.NUM_TOOLS)]
    assert others[0].fields["tools"] == tools("read-0")
    late = kept(found, "late", {"tools": tools("read")})
    assert late.fields["tools"] is not first.fields["tools"], "of many kinds the last are known"
    assert late == kept(found, "later", {"tools": tools("read")})
    assert kept(found, "none", {}) == frame_of({})
    monkeypatch.setattr(watches, "MAX_SHARED_BYTES", 10)
    one, other = (kept(found, name, {"tools": tools("long")}) for name in ("one", "other"))
    assert one == other
    assert one.fields["tools"] is not other.fields["tools"], "long ones of one client are kept for no other"
