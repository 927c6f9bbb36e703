"""The gate in 16 bits: stock differs from itself, `exact` has to be as near, and moved KV has to be further away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from acmserve.bench.harness.engine import EngineReply
from acmserve.bench.report.sections.loads import LOADS
from acmserve.bench.trace.half_precision import BLIND, NEEDED, nats_apart, nats_from_stock
from acmserve.bench.trace.load import AnsweredTurn, Load, PlannedSession, SessionReplay
from acmserve.bench.trace.peer_servers import Cached, Peer
from acmserve.bench.trace.prompts import Prompt
from acmserve.bench.trace.score import ReplayCell
from acmserve.bench.trace.table import as_report
from acmserve.bench.trace.witness import ask_witnesses
from tests.support.server.fake_openai import Answer, openai_server

MESSAGES = ({"role": "system", "content": "Session 00000000."},)
SESSION = PlannedSession("one", "00000123", tuple(Prompt(MESSAGES, (1, 2, 3), n == 1, False, 0.0) for n in range(2)))
NOISE, MOVED = 0.03, 0.4


def said(nats: float, tokens: tuple[int, ...] = (5, 6, 7)) -> EngineReply:
    """Every log-probability is `nats` from what stock says."""
    return EngineReply(0.0, 0, tokens, "", None, tuple({5: nats - 0.5, 6: nats - 2.0} for _ in tokens))


def cell(name: str, nats: float, num_moved: int = 0, **changed: Any) -> ReplayCell:
    turn = AnsweredTurn(1, 0.1, 3, (1, 2), Cached(2 - num_moved, num_moved, 1), 0.2)
    load = Load((SessionReplay(SESSION, [turn]),), 1.0)
    return replace(ReplayCell(Peer(name), "cwl", (load,) * 5, (said(nats),)), **changed)


def cells(exact: float = NOISE, moved: float = MOVED, own: float = NOISE) -> list[ReplayCell]:
    return [cell("exact", exact), cell("reuse", moved, num_moved=1), cell("stock", 0.0, fresh=(said(own),))]


def report_of(found: list[ReplayCell]) -> dict[str, Any]:
    return as_report(found, is_float32=False)


def test_exact_is_as_far_from_stock_as_stock_from_itself() -> None:
    report = report_of(cells())
    assert report["gate"]["green"]
    told = {name: round(nats, 3) for name, nats in report["nats_from_stock"]["cwl"].items()}
    assert told == {"exact": NOISE, "reuse": MOVED, "stock": NOISE}
    assert "cwl: exact is 0.030 nats from stock, moved KV 0.400, and stock from itself 0.030" in report["notes"]
    assert report["witnesses"]["cwl"]["stock"]["num_same"] == 3
    assert as_report([cell("exact", 0.0), cell("stock", 0.0)])["nats_from_stock"] == {}, "float32 has equality"


@pytest.mark.parametrize("exact", [MOVED, MOVED - 0.001, MOVED + 0.001])
def test_moved_kv_that_is_served_as_exact_is_red(exact: float) -> None:
    """The control, whichever of the two is a little nearer by chance. Its receipts say that nothing was moved."""
    report = report_of(cells(exact=exact))
    (failure,) = report["gate"]["failures"]
    assert f"exact is {exact:.3f} nats from stock, moved KV 0.400" in failure
    assert report["rows"] == []


def test_half_way_to_moved_kv_is_red() -> None:
    between = (NOISE + MOVED) / 2
    assert report_of(cells(exact=between - 0.01))["gate"]["green"]
    (failure,) = report_of(cells(exact=between + 0.01))["gate"]["failures"]
    assert failure.endswith("so exact is as moved KV is")


@pytest.mark.parametrize(("exact", "own"), [(0.0, MOVED), (0.0, MOVED + 0.1), (MOVED + 0.1, NOISE)])
def test_a_gate_that_sees_no_move_is_red(exact: float, own: float) -> None:
    """Where moved KV is no further from stock than stock is from itself, or than `exact` is."""
    (failure,) = report_of(cells(exact=exact, own=own))["gate"]["failures"]
    assert failure.endswith(BLIND)


@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_a_run_that_cannot_judge_says_that_its_gate_is_blind(left_out: int) -> None:
    found = cells()
    del found[left_out]
    report = report_of(found)
    assert report["gate"]["green"]
    assert f"cwl: the gate needs {NEEDED}, {BLIND}" in report["notes"]
    nothing_moved = [cell("exact", 0.0), cell("reuse", 0.0), cell("stock", 0.0, fresh=(said(NOISE),))]
    assert f"cwl: the gate needs {NEEDED}, {BLIND}" in report_of(nothing_moved)["notes"]


def test_runs_without_last_prompts_have_a_gate_of_their_own() -> None:
    """Those of the GPU suite."""
    bare = [replace(one, witnesses=(), fresh=()) for one in cells()]
    assert report_of(bare)["gate"]["green"]
    assert not any(BLIND in note for note in report_of(bare)["notes"])


def test_a_model_of_one_layer_is_not_judged() -> None:
    report = as_report(cells(exact=MOVED), is_timed=False, is_float32=False)
    assert report["gate"]["green"]


def test_distances_are_means_up_to_the_first_other_token() -> None:
    """Behind it the two continue different texts. What an answer does not list counts as the lowest that it lists."""
    assert nats_apart(said(0.2), said(0.0)) == pytest.approx(0.2)
    other = said(0.2, (5, 9, 7))
    far = replace(other, logprobs=(*other.logprobs[:2], {5: -90.0}))
    assert nats_apart(far, said(0.0)) == pytest.approx(0.2)
    unlisted = replace(said(0.0), logprobs=({5: -0.5},) * 3)
    assert nats_apart(unlisted, said(0.0)) == pytest.approx(0.75)


def test_the_distance_of_several_prompts_is_their_mean() -> None:
    """One prompt counts as much as another, however soon its answers differ."""
    stock = cell("stock", 0.0, witnesses=(said(0.0),) * 2, fresh=(said(0.0), said(0.1, (9, 9, 9))))
    assert nats_from_stock([stock])["cwl"]["stock"] == pytest.approx(0.05)


def test_fresh_answers_come_from_a_salt_of_their_own() -> None:
    salts: list[str] = []

    def answer(path: str, body: Any, key: str | None) -> Answer:
        salts.append(body["cache_salt"])
        return 400, {"error": "no"}

    with openai_server(answer) as url:
        for is_fresh in (False, True):
            with pytest.raises(Exception, match="did not answer a last prompt once more"):
                ask_witnesses(url, Peer("stock"), "m", [SESSION], is_fresh=is_fresh)
    assert salts == ["stock", "fresh"]


def test_the_page_tells_the_three_distances() -> None:
    (section,) = (one for one in LOADS if one.files == ("trace-4",))
    note = section.notes[1]
    assert callable(note)
    told = note({"trace-4": report_of(cells()) | {"at_defaults": True}})
    assert told.endswith("Those of `exact` are 0.030 from stock's, and those of moved KV 0.400.")
    older = {"at_defaults": True}
    assert note({"trace-4": older}) == "In bfloat16 stock is not always the same as itself.", "older files have none"
    for report in ({}, {"at_defaults": False, "nats_from_stock": {}}):
        assert note({"trace-4": report}) == "All servers compute in float32, and none is compiled."
