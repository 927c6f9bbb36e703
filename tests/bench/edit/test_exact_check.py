"""The check of `exact` on a real server: moved KV that is served as exact turns it red, and so does a blind control."""

from __future__ import annotations

from dataclasses import replace

import pytest

from acmserve.bench.edit.exact_check import Answer, ExactCheck, check_exact, over_http, with_check
from acmserve.bench.edit.gate import AnswerDistance
from acmserve.bench.edit.kinds import Tokens
from acmserve.bench.edit.main import read_text
from acmserve.bench.harness.engine import Ask, EngineReply
from acmserve.bench.harness.options import as_gate
from acmserve.errors import AcmError
from acmserve.models.smollm2 import prepare

SAME, OTHER = AnswerDistance(32, 32, 1e-5), AnswerDistance(32, 32, 2e-3)


@pytest.fixture(scope="module")
def text() -> Tokens:
    return read_text(prepare())


@pytest.fixture
def answer(server: str) -> Answer:
    return over_http(server, "smollm2")


def test_exact_is_a_plain_request_and_moved_kv_is_not(answer: Answer, text: Tokens) -> None:
    found = check_exact(answer, text)
    assert found.failures == []
    assert found.exact.num_tokens == 32
    assert found.num_moved > 0
    assert not found.reuse.is_same


def test_moved_kv_that_is_served_as_exact_is_red(answer: Answer, text: Tokens) -> None:
    """The control: a server that moves whatever was asked for."""

    def moving(ask: Ask) -> EngineReply:
        if ask.session_id is None:
            return answer(replace(ask, salt=f"{ask.salt} moving"))
        owner = f"{ask.session_id} moving"
        return answer(replace(ask, salt=owner, session_id=owner, fidelity="reuse"))

    (failure,) = check_exact(moving, text).failures
    assert failure.startswith("exact answers otherwise than a plain request: ")


@pytest.mark.parametrize(
    ("check", "is_red"),
    [
        (ExactCheck(SAME, OTHER, 500, has_layers=True), False),
        (ExactCheck(OTHER, OTHER, 500, has_layers=True), True),
        (ExactCheck(SAME, SAME, 500, has_layers=True), True),
        (ExactCheck(SAME, SAME, 500, has_layers=False), False),
        (ExactCheck(SAME, SAME, 0, has_layers=True), False),
        (ExactCheck(OTHER, SAME, 0, has_layers=False), True),
    ],
)
def test_a_red_check_makes_the_gate_of_its_report_red(check: ExactCheck, is_red: bool) -> None:
    report = with_check({"gate": as_gate([]), "rows": [1]}, check)
    assert report["gate"]["green"] is not is_red
    assert report["exact_check"]["moved_tokens"] == check.num_moved
    also = with_check({"gate": as_gate(["something else"])}, check)
    assert also["gate"]["failures"] == [*check.failures, "something else"]


def test_a_server_without_an_answer_is_an_error() -> None:
    with pytest.raises(AcmError, match="the check of exact got no answer"):
        over_http("http://127.0.0.1:9", "m")(Ask((1, 2), "salt"))
