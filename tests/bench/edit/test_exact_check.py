"""The check of `exact` on a real server: moved KV that is served as exact turns it red, and so does a blind control."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from acmserve.bench.edit import exact_check
from acmserve.bench.edit.exact_check import ExactCheck, check_exact, over_http, with_check
from acmserve.bench.edit.gate import AnswerDistance
from acmserve.bench.edit.kinds import EditSizes, Tokens
from acmserve.bench.edit.main import read_text
from acmserve.bench.harness.engine import Ask, EngineReply
from acmserve.bench.harness.options import as_gate
from acmserve.errors import AcmError
from acmserve.models.smollm2 import prepare

SIZES = EditSizes(prefix=60, folded=90, suffix=150)
SAME, OTHER = AnswerDistance(32, 32, 1e-5), AnswerDistance(32, 32, 2e-3)


@pytest.fixture(scope="module")
def text() -> Tokens:
    return read_text(prepare())


@dataclass(frozen=True)
class Told:
    """What the check found on the server, and each reply to it."""

    check: ExactCheck
    replies: dict[tuple[str | None, Tokens, int], EngineReply]


@pytest.fixture(scope="module")
def told(server: str, text: Tokens) -> Iterator[Told]:
    """The check of a short text. Its sizes hold to the end of the module."""
    answer = over_http(server, "smollm2")
    replies: dict[tuple[str | None, Tokens, int], EngineReply] = {}

    def recorded(ask: Ask) -> EngineReply:
        return replies.setdefault(_key(ask), answer(ask))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_check, "SIZES", SIZES)
        yield Told(check_exact(recorded, text), replies)


def _key(ask: Ask) -> tuple[str | None, Tokens, int]:
    return (ask.fidelity if ask.session_id else None, ask.token_ids, ask.max_tokens)


def test_exact_is_a_plain_request_and_moved_kv_is_not(told: Told) -> None:
    assert told.check.failures == []
    assert told.check.exact.num_tokens == 32
    assert told.check.num_moved > 0
    assert not told.check.reuse.is_same


def test_moved_kv_that_is_served_as_exact_is_red(told: Told, text: Tokens) -> None:
    """The control: a server that moves whatever was asked for. Its replies are those of the server under `reuse`."""

    def moving(ask: Ask) -> EngineReply:
        return told.replies[_key(ask if ask.session_id is None else replace(ask, fidelity="reuse"))]

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
