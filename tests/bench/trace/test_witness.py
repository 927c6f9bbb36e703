"""The gate of `bench trace`: another token or log-probability than stock's is red, and so is a control that passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from acmserve.bench.harness.engine import EngineReply
from acmserve.bench.trace.load import AnsweredTurn, Load, PlannedSession, SessionReplay
from acmserve.bench.trace.peer_servers import Cached, Peer
from acmserve.bench.trace.prompts import Prompt
from acmserve.bench.trace.score import ReplayCell
from acmserve.bench.trace.table import as_report
from acmserve.bench.trace.witness import (
    MOST_WITNESSED,
    ask_witnesses,
    check_witnesses,
    compare_witnesses,
    read_reply,
    witnessed,
)
from acmserve.errors import AcmError
from tests.support.server.fake_openai import Answer, openai_server

MESSAGES = ({"role": "system", "content": "Session 00000000."},)
SESSION = PlannedSession("one", "00000123", tuple(Prompt(MESSAGES, (1, 2, 3), n == 1, False, 0.0) for n in range(2)))


def said(tokens: tuple[int, ...], first: float = -0.5) -> EngineReply:
    """Log-probabilities of two tokens each. `first` is that of the first token of all."""
    listed = [{token: first if place == 0 else -0.5, 9: -2.0} for place, token in enumerate(tokens)]
    return EngineReply(0.0, 0, tokens, "", None, tuple(listed))


def cell(name: str, witness: EngineReply | None, num_moved: int = 0) -> ReplayCell:
    turn = AnsweredTurn(1, 0.1, 3, (1, 2), Cached(2 - num_moved, num_moved, 1), 0.2)
    load = Load((SessionReplay(SESSION, [turn]),), 1.0)
    return ReplayCell(Peer(name), "cwl", (load,) * 5, () if witness is None else (witness,))


STOCK = said((5, 6, 7))
MOVED = said((5, 8, 7))


def cells(exact: EngineReply = STOCK, reuse: EngineReply = MOVED) -> list[ReplayCell]:
    return [cell("exact", exact), cell("reuse", reuse, num_moved=1), cell("stock", STOCK)]


def test_the_last_prompt_of_exact_has_stocks_tokens_and_log_probabilities() -> None:
    report = as_report(cells())
    assert report["gate"]["green"]
    assert report["witnesses"]["cwl"]["exact"] == {"num_tokens": 3, "num_same": 3, "largest_difference": 0.0}
    assert report["witnesses"]["cwl"]["reuse"]["num_same"] == 1
    assert as_report(cells(exact=said((5, 6, 7), first=-0.5009)))["gate"]["green"], "within 1e-3"


@pytest.mark.parametrize("exact", [MOVED, said((5, 6, 7), first=-0.5011)], ids=["a token", "a log-probability"])
def test_moved_kv_that_is_served_as_exact_is_red(exact: EngineReply) -> None:
    """The control: tokens of whole replays agree, and receipts say that nothing was moved."""
    report = as_report(cells(exact=exact))
    (failure,) = report["gate"]["failures"]
    assert failure.startswith("exact, cwl: answers otherwise than stock vLLM")
    assert report["rows"] == []


def test_a_gate_that_sees_no_move_is_red() -> None:
    assert check_witnesses(cells(reuse=STOCK), has_layers=True) == [
        "moved KV passes as exact in all 1 kinds of edit, so the gate sees no move"
    ]
    assert check_witnesses(cells(reuse=STOCK), has_layers=False) == [], "KV of one layer may be moved"
    nothing_moved = [cell("exact", STOCK), cell("reuse", STOCK), cell("stock", STOCK)]
    assert check_witnesses(nothing_moved, has_layers=True) == []


def test_without_stock_nothing_is_compared() -> None:
    assert compare_witnesses([cell("exact", STOCK), cell("reuse", MOVED), cell("stock", None)]) == {}


def planned(num_edits: int) -> PlannedSession:
    prompts = tuple(Prompt(MESSAGES, (1, 2, 3), 0 < number <= num_edits, False, 0.0) for number in range(6))
    return PlannedSession(f"{num_edits} edits", "00000123", prompts)


def test_the_sessions_with_the_most_edits_are_asked() -> None:
    sessions = [planned(num_edits) for num_edits in (0, 3, 1, 5, 2, 1)]
    assert witnessed(sessions) == [3, 1, 4, 2]
    assert len(witnessed(sessions)) == MOST_WITNESSED
    assert witnessed(sessions[:1]) == [0]


def test_every_session_that_is_asked_has_to_agree() -> None:
    """The second one tells another token, and the first one none."""
    asked = [replace(one, witnesses=(one.witnesses[0], STOCK)) for one in cells()]
    assert as_report(asked)["gate"]["green"]
    asked[0] = replace(asked[0], witnesses=(STOCK, MOVED))
    report = as_report(asked)
    assert report["witnesses"]["cwl"]["exact"]["num_tokens"] == 6
    assert not report["gate"]["green"]


def chunk(token: int, *likely: tuple[int, float]) -> dict[str, Any]:
    listed = [{"token": f"token_id:{one}", "logprob": logprob} for one, logprob in likely]
    content = [{"token": f"token_id:{token}", "logprob": likely[0][1], "top_logprobs": listed}]
    return {"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": {"content": content}}]}


def test_tokens_and_log_probabilities_are_read_from_a_stream() -> None:
    chunks: list[Mapping[str, Any]] = [chunk(5, (5, -0.5), (9, -2.0)), {"choices": []}, chunk(6, (6, -0.25))]
    reply = read_reply(chunks)
    assert reply.token_ids == (5, 6)
    assert reply.logprobs == ({5: -0.5, 9: -2.0}, {6: -0.25})
    with pytest.raises(AcmError, match="no log-probabilities"):
        read_reply([{"choices": []}])


def test_a_server_that_refuses_is_named_and_others_are_not_asked() -> None:
    def answer(path: str, body: Any, key: str | None) -> Answer:
        return 400, {"error": "no"}

    with openai_server(answer) as url:
        with pytest.raises(AcmError, match="did not answer a last prompt once more"):
            ask_witnesses(url, Peer("stock"), "m", [SESSION])
        assert ask_witnesses(url, Peer("noprefix"), "m", [SESSION]) == ()
