"""What is recorded of a request, however it ends: its receipt, its times, and what was edited and evicted before it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from acmserve.context.session.history import adopt
from acmserve.context.session.turns.turn import MAX_ID_CHARS, EvictionKind, SessionTurn, TurnEnd, TurnOrigin
from acmserve.context.storage.session import Session
from acmserve.errors import Conflict
from acmserve.plan.request import SessionParams
from acmserve.server.budget.enforcement import Enforced
from acmserve.server.budget.savings import saved_seconds
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.exchange import Exchange
from acmserve.server.sessions.turn_recorder import find_evictions
from tests.support.recorded_turns import receipt
from tests.support.server.acm_app import HISTORY, SESSIONS, lines, make_client, make_server

CLEAR, THINKING, COMPACT = "clear_tool_uses_20250919", "clear_thinking_20251015", "compact_20260112"
STREAMED = SamplingParams(output_kind=RequestOutputKind.DELTA)


@dataclass
class Output:
    """One output of the engine. The receipt comes with the first one."""

    kv_transfer_params: dict[str, Any] | None
    finished: bool = False
    num_cached_tokens: int | None = 0
    num_cache_creation_tokens: int | None = 0
    outputs: list[Any] = field(default_factory=lambda: [SimpleNamespace(index=0, token_ids=[5, 6], text="a b")])


@pytest.fixture
def server() -> ContextServer:
    server = make_server()
    make_client(server).post(SESSIONS, json={"session_id": "s", "messages": HISTORY}).raise_for_status()
    return server


@pytest.fixture
def session(server: ContextServer) -> Session:
    return server.store.get("", "s")


def asked(
    server: ContextServer, session: Session, enforced: Enforced | None = None, step: int | None = None
) -> Exchange:
    origin = TurnOrigin("/v1/messages", step)
    exchange = server.sessions.exchange(session, SessionParams("s"), (), enforced, None, origin)
    exchange.send(STREAMED, "r" * 999)
    return exchange


def said(exchange: Exchange, *, finished: bool = False, **counts: int) -> None:
    acm = {"acm": {"session_id": "s", "receipt": receipt(**counts)}}
    exchange.receive(Output(acm, finished))


def last(session: Session) -> SessionTurn:
    return session.turns.turns[-1]


def counted(name: str, **labels: str) -> float:
    """A counter of /metrics."""
    found = REGISTRY.get_sample_value(f"acmserve:{name}_total", labels)
    assert found is not None
    return found


def test_an_answered_request_is_one_turn(server: ContextServer, session: Session) -> None:
    exchange = asked(server, session)
    said(exchange, kept=3, computed=4)
    assert session.turns.turns == ()
    said(exchange, kept=3, computed=4, finished=True)
    exchange.end(TurnEnd.ABORTED)
    (turn,) = session.turns.turns
    assert (turn.end, turn.origin.route, turn.prompt_tokens, turn.output_tokens) == (
        TurnEnd.ANSWERED,
        "/v1/messages",
        7,
        4,
    )
    assert turn.receipt == receipt(kept=3, computed=4)
    assert turn.first_token_seconds is not None
    assert 0 <= turn.first_token_seconds <= turn.seconds
    assert turn.request_id == "r" * MAX_ID_CHARS


@pytest.mark.parametrize("end", [TurnEnd.ABORTED, TurnEnd.FAILED])
@pytest.mark.parametrize("heard", [True, False])
def test_one_that_breaks_off_is_a_turn_with_what_was_heard(
    server: ContextServer, session: Session, end: TurnEnd, heard: bool
) -> None:
    exchange = asked(server, session)
    if heard:
        said(exchange, kept=3, computed=4)
    exchange.end(end)
    totals = session.turns.totals
    assert last(session).end is end
    assert (last(session).receipt is not None) == heard
    assert (totals.prompt_tokens, totals.turns_without_receipt) == ((7, 0) if heard else (0, 1))


def test_edits_and_evictions_stand_in_the_turn_behind_them(server: ContextServer, session: Session) -> None:
    client, before = make_client(server), counted("evictions", kind="caller")
    steps = [{"role": role, "content": lines(20)} for role in ("assistant", "user")]
    server.store.save(session, adopt(session.state, [*HISTORY, *steps, *steps, *steps]).state)
    budget = {"max_tokens": 500, "low_watermark": 100, "policy": "recency"}
    client.put(f"{SESSIONS}/s/budget", json=budget).raise_for_status()
    edits = [{"op": op, "messages": {"start": at, "end": at + 1}} for op, at in (("fold", 1), ("redact", 3))]
    done = client.post(f"{SESSIONS}/s/edits", json={"edits": edits}).raise_for_status().json()["edits"]
    cut = {"arguments": {"start_marker": "Read", "end_marker": ".", "num_fragments": 1}}
    client.post(f"{SESSIONS}/s/tools/fragment_context", json=cut).raise_for_status()
    arguments = {"arguments": {"fragment_id": done[0]["fragment_id"]}}
    restored = client.post(f"{SESSIONS}/s/tools/restore_fragment", json=arguments).raise_for_status().json()
    assert not restored["is_error"], restored
    evicted = client.post(f"{SESSIONS}/s/evict").raise_for_status().json()
    assert client.post(f"{SESSIONS}/s/evict?dry_run=true").is_success
    said(asked(server, session), computed=9, finished=True)
    saved = [edit["tokens_before"] - edit["tokens_after"] for edit in done]
    assert [(edit.kind, edit.saved_tokens, edit.by) for edit in last(session).edits] == [
        ("fold", saved[0], "caller"),
        ("redact", saved[1], "caller"),
        ("restore", -saved[0], "caller"),
    ]
    gone = evicted["tokens_before"] - evicted["tokens_after"]
    assert counted("evictions", kind="caller") - before == 1
    assert gone > 0
    assert [(one.kind, one.name, one.num_tokens) for one in last(session).evictions] == [
        (EvictionKind.CALLER, "recency", gone)
    ]
    assert session.turns.totals.evicted_tokens == gone


REPORT = {
    "max_tokens": 500,
    "policy": "cwl",
    "evicted_tokens": 30,
    "evicted": [{"levels": {"remove": 10, "clear_result": 5}}, {"levels": {"remove": 15}}],
    "unmet": None,
}


def edited(**cleared: int) -> dict[str, Any]:
    names = {"clear": CLEAR, "thinking": THINKING, "compact": COMPACT}
    return {"applied_edits": [{"type": names[name], "cleared_input_tokens": num} for name, num in cleared.items()]}


@pytest.mark.parametrize(
    ("report", "told", "cleared", "expected"),
    [
        (None, None, {CLEAR: 5}, []),
        (REPORT, None, {}, [("cwl", 30)]),
        (REPORT | {"evicted_tokens": 0, "evicted": []}, None, {}, []),
        (None, edited(clear=40, thinking=2), {}, [(CLEAR, 40), (THINKING, 2)]),
        (None, edited(clear=40), {CLEAR: 40}, []),
        (None, edited(clear=40), {CLEAR: 25, THINKING: 3}, [(CLEAR, 15)]),
        (None, edited(clear=10), {CLEAR: 25}, []),
        (None, edited(compact=100), {}, [(COMPACT, 100)]),
        (REPORT, edited(clear=40), {}, [("cwl", 30), (CLEAR, 10)]),
    ],
)
def test_what_a_prompt_is_the_first_to_have_evicted(
    server: ContextServer,
    session: Session,
    report: dict[str, Any] | None,
    told: dict[str, Any] | None,
    cleared: Mapping[str, int],
    expected: Sequence[tuple[str, int]],
) -> None:
    found, now = find_evictions(Enforced(session.state, report, told), cleared)
    assert [(one.name, one.num_tokens) for one in found] == expected
    if report is REPORT:
        assert found[0].levels == {"remove": 25, "clear_result": 5}
    again, _ = find_evictions(Enforced(session.state, None, told), now)
    assert [one.name for one in again if one.name != COMPACT] == [], "what was told once is told again by no turn"


@pytest.mark.parametrize(
    ("end", "step", "num_evicted"), [("answered", None, 30), ("aborted", None, 0), ("aborted", 1, 30)]
)
def test_an_eviction_counts_where_the_session_keeps_it(
    server: ContextServer, session: Session, end: str, step: int | None, num_evicted: int
) -> None:
    before = counted("evicted_tokens", kind="budget")
    exchange = asked(server, session, Enforced(session.state, REPORT), step)
    said(exchange, computed=9, finished=end == "answered")
    exchange.end(TurnEnd.ABORTED)
    assert counted("evicted_tokens", kind="budget") - before == num_evicted
    assert last(session).budget_tokens == 500
    assert session.turns.totals.evicted_tokens == num_evicted == sum(one.num_tokens for one in last(session).evictions)


@pytest.mark.parametrize("is_over", [False, True])
def test_a_turn_over_its_budget_is_counted(server: ContextServer, session: Session, is_over: bool) -> None:
    before = counted("budget_unmet")
    report = REPORT | {"unmet": {"message": "the prologue stays", "tokens_over": 9} if is_over else None}
    exchange = asked(server, session, Enforced(session.state, report))
    said(exchange, computed=9, finished=True)
    assert counted("budget_unmet") - before == is_over


def test_seconds_saved_are_those_of_the_receipts(server: ContextServer, session: Session) -> None:
    server.budgets.rates.note(1000, 0, 10.0)
    before = counted("saved_seconds")
    for counts in ({"computed": 9}, {"kept": 500, "precomputed_tokens": 300, "computed": 9}, {"moved": 200}):
        said(asked(server, session), finished=True, **counts)
    saved = counted("saved_seconds") - before
    assert saved == pytest.approx(saved_seconds(session.turns.totals, server.budgets.rates))
    assert saved > 4


def test_a_record_that_fails_fails_no_request(
    server: ContextServer, session: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise Conflict("session_id", "no room")

    monkeypatch.setattr(server.store, "record", refuse)
    before = counted("saved_seconds")
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            said(asked(server, session), moved=9, finished=True)
    assert session.turns.turns == ()
    assert counted("saved_seconds") == before
    assert len([line for line in caplog.records if "is in no record" in line.getMessage()]) == 1


def test_a_session_that_is_gone_takes_no_turn_and_another_of_its_name_neither(
    server: ContextServer, session: Session
) -> None:
    exchange = asked(server, session)
    server.delete(session)
    other = server.store.open("", "s")
    said(exchange, computed=9, finished=True)
    assert session.turns.turns == other.turns.turns == ()


def test_a_background_request_is_no_turn(server: ContextServer, session: Session) -> None:
    exchange = server.sessions.background_exchange(session, (), 0)
    exchange.send(STREAMED, "r")
    said(exchange, computed=9, finished=True)
    assert session.turns.totals.turns == 0
