"""What `acmserve eval` takes for a server with acmserve, and what it does where a vendor's server is not like it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from acmserve.bench.eval.schedule.retries import NUM_RETRIES, seconds_to_wait
from acmserve.bench.eval.target import RefusedSample, Target
from acmserve.context.maps.update import FULL
from acmserve.errors import InvalidRequest, Unavailable
from tests.support.server.acm_app import make_app, make_server

URL = "http://testserver/v1"


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.7"])
def test_a_server_without_keys_is_known_from_another_machine(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lists everybody's sessions for its own machine only."""
    app = make_app(make_server(has_api_keys=False))
    monkeypatch.setattr(httpx, "Client", lambda **_: TestClient(app, client=(address, 50_000)))
    assert Target.find(URL, "toy", None, {}).has_acm


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(404, json={"detail": "Not Found"}),
        httpx.Response(200, html="<p>a page for every path</p>"),
        httpx.Response(200, json={"message": "an object for every path"}),
        httpx.Response(200, json=["a list for every path"]),
    ],
)
def test_a_server_that_lists_no_sessions_has_no_acmserve(
    answer: httpx.Response, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = httpx.Client(transport=httpx.MockTransport(lambda _: answer))
    monkeypatch.setattr(httpx, "Client", lambda **_: plain)
    assert not Target.find(URL, "toy", None, {}).has_acm


@pytest.mark.parametrize(
    ("status", "found"), [(200, {"num_updates": 2, "num_beyond_budget": 4}), (404, None)], ids=["told", "gone"]
)
def test_updates_behind_one_session_are_counted(status: int, found: dict[str, int] | None) -> None:
    """Those that failed included, and neither edits by hand nor those of other questions.

    An item counts that was evicted, or new to a full map. One that was refused for its words does not, nor does a
    deletion behind one that did not fit.
    """
    changes = [
        ("model", "mine", 3, [("ADD", ""), ("ADD", FULL), ("DELETE", FULL)]),
        ("edit", "", 1, []),
        ("model", "other", 1, [("ADD", FULL)]),
        ("model", "mine", 0, [("ADD", "holds a special token")]),
    ]
    told = {
        "data": [
            {
                "kind": kind,
                "session_id": session,
                "evicted": [{"id": "rr-00001"}] * num_evicted,
                "operations": [{"kind": made, "refused": refused} for made, refused in notes],
            }
            for kind, session, num_evicted, notes in changes
        ]
    }
    plain = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(status, json=told)))
    assert Target(URL, "toy", True, {}, plain).map_changes("corpus", "salt", "mine") == found


ANSWER = {"choices": [{"message": {"content": "Paris"}}], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}
NO_MAX_TOKENS = {
    "message": "Unsupported parameter: 'max_tokens' is not supported with this model. "
    "Use 'max_completion_tokens' instead.",
    "param": "max_tokens",
    "code": "unsupported_parameter",
}
NO_TEMPERATURE = {
    "message": "Unsupported value: 'temperature' does not support 0 with this model.",
    "param": "temperature",
    "code": "unsupported_value",
}
TOO_LONG = {"message": "'max_tokens' or 'max_completion_tokens' is too large: 5000.", "code": 400}


class Vendor:
    """Answers with what it was given, one after the other, and keeps what it was asked."""

    def __init__(self, answers: Sequence[httpx.Response]) -> None:
        self.left, self.asked = list(answers), list[dict[str, Any]]()

    def target(self) -> Target:
        return Target(
            URL, "vendor", False, {"temperature": 0}, httpx.Client(transport=httpx.MockTransport(self._answer))
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(json.loads(request.content))
        return self.left.pop(0)


def refusal(error: dict[str, Any]) -> httpx.Response:
    return httpx.Response(400, json={"error": error})


def test_a_model_that_takes_max_completion_tokens_alone_is_asked_with_them_from_then_on() -> None:
    vendor = Vendor([refusal(NO_MAX_TOKENS), *(httpx.Response(200, json=ANSWER) for _ in range(2))])
    target = vendor.target()
    for _ in range(2):
        answer, _ = target.chat({"max_tokens": 64, "messages": []})
        assert answer.text == "Paris"
    fields = [sorted({"max_tokens", "max_completion_tokens"} & body.keys()) for body in vendor.asked]
    assert fields == [["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"]]
    assert vendor.asked[-1]["max_completion_tokens"] == 64


def test_a_prompt_that_is_too_long_is_a_refused_sample_though_the_field_is_named() -> None:
    vendor = Vendor([refusal(TOO_LONG)])
    with pytest.raises(RefusedSample, match="too large: 5000"):
        vendor.target().chat({"max_tokens": 5000})
    assert len(vendor.asked) == 1


def test_a_temperature_that_a_model_does_not_take_ends_the_run_with_the_flag_that_sets_it() -> None:
    vendor = Vendor([refusal(NO_TEMPERATURE)])
    with pytest.raises(InvalidRequest, match=r"""vendor does not take .* Give --request .\{"temperature": 1\}."""):
        vendor.target().chat({"max_tokens": 64})


def test_a_busy_server_is_asked_again_when_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is in no time of an answer."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    busy = [httpx.Response(429, headers={"Retry-After": "7"}), httpx.Response(503), httpx.Response(429)]
    vendor = Vendor([*busy, httpx.Response(200, json=ANSWER)])
    assert vendor.target().chat({"max_tokens": 64})[0].text == "Paris"
    assert waits == [7, 2, 4]


@pytest.mark.parametrize("told", ["3600", "0"])
def test_a_server_that_stays_busy_ends_the_run(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    vendor = Vendor([httpx.Response(429, headers={"Retry-After": told}) for _ in range(NUM_RETRIES + 1)])
    with pytest.raises(Unavailable, match="answered 429"):
        vendor.target().chat({"max_tokens": 64})
    assert len(vendor.asked) == (1 if told == "3600" else NUM_RETRIES + 1)


@pytest.mark.parametrize(
    ("status", "told", "num_sent", "seconds"),
    [
        (429, "5", 1, 5),
        (503, None, 3, 4),
        (429, "Mon, 30 Nov 2026 00:00:10 GMT", 1, 10),
        (429, "Mon, 30 Nov 2026 00:00:10 -0000", 1, 10),
        (429, "Sun, 29 Nov 2026 23:59:00 GMT", 1, 0),
        (429, "soon", 2, 2),
        (429, "61", 1, None),
        (429, None, NUM_RETRIES + 1, None),
        (500, "5", 1, None),
        (200, None, 1, None),
    ],
)
def test_when_a_request_is_sent_again(status: int, told: str | None, num_sent: int, seconds: float | None) -> None:
    headers = {} if told is None else {"retry-after": told}
    assert seconds_to_wait(status, headers, num_sent, datetime(2026, 11, 30, tzinfo=UTC)) == seconds
