"""Speculative exactness on a real server: the answers of `exact`, whole and as a stream, and what the receipt says.

Each fold is asked for twice, in sessions whose salts differ: under plain `exact`, and with a draft. Nothing that one
computes serves the other. What `exact` says of the first page is asked for once, and each draft of that page is a
session of its own. `ACMSERVE_SPECULATION=10000` compares as many tokens (`make speculation`). What counts for the
acceptance is recorded by `acmserve bench speculation-tokens`.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import time
from collections import Counter
from pydoc_data.topics import topics
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from acmserve.server.speculation.speculator import MIN_PREFILL_TOKENS
from tests.support.server.scripts import new_session

NUM_TOKENS = int(os.environ.get("ACMSERVE_SPECULATION", "32"))
IS_LONG = NUM_TOKENS > 128
NUM_ANSWERED = 64 if IS_LONG else 16
PAGES = "\n".join(topics[name] for name in sorted(topics))
"""Ordinary text that nobody here edits: the manual of Python. With other pages, other tokens would be drafted."""
ROOMS = [f"The door of room {room} is painted {('red', 'blue', 'green')[room % 3]}." for room in range(50)]


class Spoken:
    """One answer: its text, its usage, and `acm`."""

    def __init__(
        self, client: OpenAI, session: str, messages: list[Any], *, stream: bool = False, **fields: Any
    ) -> None:
        acm, salt = fields.pop("acm", {}), fields.pop("salt", session)
        body = {"session_id": session, "cache_salt": salt, "acm": acm, "ignore_eos": True}
        arguments: Any = {"model": "smollm2", "temperature": 0, "max_tokens": NUM_ANSWERED, "extra_body": body} | fields
        if stream:
            options = {"include_usage": True}
            chunks = list(
                client.chat.completions.create(messages=messages, stream=True, stream_options=options, **arguments)
            )
            self.text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            self.usage = chunks[-1].usage
            self.acm = (chunks[-1].model_extra or {})["acm"]
            self.finish = next(c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason)
        else:
            answer = client.chat.completions.create(messages=messages, **arguments)
            self.text, self.usage = answer.choices[0].message.content or "", answer.usage
            self.acm, self.finish = (answer.model_extra or {})["acm"], answer.choices[0].finish_reason


def pages(seed: int, *, is_folded: bool, num_behind: int = 2600) -> list[Any]:
    """A page of the manual, whose second part may be folded, `num_behind` characters behind it, and a question."""
    start = (1 + seed) * 4001 % (len(PAGES) - 5000)
    head, middle, rest = (
        PAGES[start : start + 200],
        PAGES[start + 200 : start + 600],
        PAGES[start + 600 :][:num_behind],
    )
    text = f"{head}\n{'[folded]' if is_folded else middle}\n{rest}"
    return [{"role": "user", "content": f"{text}\n\nSay in your own words what this page is about."}]


def exact(client: OpenAI, seed: int, **fields: Any) -> Spoken:
    """The answer of `exact` to a folded page."""
    return Spoken(client, new_session(), pages(seed, is_folded=True), **fields)


def drafted(client: OpenAI, seed: int, **fields: Any) -> Spoken:
    """The one that was drafted, in a session that has read the whole page."""
    session = new_session()
    Spoken(client, session, pages(seed, is_folded=False), max_tokens=1)
    return Spoken(client, session, pages(seed, is_folded=True), acm={"speculate": True}, **fields)


@pytest.fixture(scope="module")
def first_page(client: OpenAI) -> Spoken:
    """The answer of `exact` to the first page, folded."""
    return exact(client, 0)


def test_the_tokens_of_exact(client: OpenAI, first_page: Spoken) -> None:
    """Whole answers and streams, in turns. How many drafted tokens are accepted is what `bench speculation` judges.

    Tokens of answers whose draft was verified count. In the suite that is each of them. Among many answers some begin
    with another token than their draft, and say so: they have the tokens of `exact`, and their reasons are counted.
    """
    num_drafted = num_accepted = num_verified = 0
    reasons: Counter[str] = Counter()
    num_most = -(-NUM_TOKENS // NUM_ANSWERED) * (2 if IS_LONG else 1)
    for seed in range(num_most):
        if num_verified >= NUM_TOKENS:
            break
        is_stream = seed % 2 == 1
        expected = exact(client, seed, stream=is_stream) if seed else first_page
        answer = drafted(client, seed, stream=is_stream)
        told = answer.acm["speculation"]
        assert IS_LONG or told["reason"] is None, told
        assert answer.text == expected.text, told
        assert answer.finish == expected.finish
        assert answer.usage.completion_tokens == expected.usage.completion_tokens == NUM_ANSWERED
        assert answer.usage.prompt_tokens == expected.usage.prompt_tokens
        assert answer.acm["receipt"]["moved_tokens"] == 0
        num_drafted += told["drafted_tokens"]
        num_accepted += told["accepted_tokens"]
        if told["reason"] is None:
            num_verified += NUM_ANSWERED
        else:
            reasons[told["reason"]] += 1
    print(f"{num_verified} tokens as exact, {num_accepted} of {num_drafted} drafted ones accepted, {dict(reasons)}")
    assert num_verified >= NUM_TOKENS, reasons
    assert num_drafted > (num_verified + NUM_ANSWERED * reasons.total()) // 20
    assert num_drafted >= num_accepted > 0


def doors(*, is_folded: bool) -> list[Any]:
    """A list that later lines change, of which the old lines may be folded."""
    old = "The old list is no longer of use." if is_folded else " ".join(ROOMS)
    new = " ".join(line.replace("painted", "now painted") for line in reversed(ROOMS))
    text = f"Remember the doors. {old} {new} What colours have the doors of all rooms? List them, the first room first."
    return [{"role": "user", "content": text}]


def test_moved_kv_would_have_answered_otherwise(client: OpenAI) -> None:
    """The control: what the draft says is the answer of `reuse`, and that is another one than the answer of `exact`.

    Both sessions have one salt. So the exact answer behind the draft must not find what `reuse` left, either.
    """
    expected = Spoken(client, new_session(), doors(is_folded=True))
    answers, salt = {}, new_session()
    for name, acm in (("reuse", {"fidelity": "reuse"}), ("draft", {"speculate": True})):
        session = new_session()
        Spoken(client, session, doors(is_folded=False), max_tokens=1, salt=salt)
        answers[name] = Spoken(client, session, doors(is_folded=True), acm=acm, salt=salt)
    assert answers["reuse"].acm["receipt"]["moved_tokens"] > 500
    assert answers["reuse"].text != expected.text, "shown unverified, the draft would be wrong"
    assert answers["draft"].text == expected.text
    assert answers["draft"].acm["receipt"]["moved_tokens"] == 0


def test_no_other_request_finds_the_kv_of_a_draft(client: OpenAI) -> None:
    """The turn behind a drafted answer keeps exact KV alone."""
    session = new_session()
    Spoken(client, session, pages(5, is_folded=False), max_tokens=1)
    answer = Spoken(client, session, pages(5, is_folded=True), acm={"speculate": True}, max_tokens=16)
    history = [
        *pages(5, is_folded=True),
        {"role": "assistant", "content": answer.text},
        {"role": "user", "content": "Say it again, shorter."},
    ]
    after = Spoken(client, session, history, acm={"fidelity": "exact"}, max_tokens=16)
    expected = Spoken(client, new_session(), history, max_tokens=16)
    assert after.text == expected.text
    receipt = after.acm["receipt"]
    assert receipt["moved_tokens"] == 0
    assert receipt["kept_tokens"] > answer.usage.prompt_tokens - 2, "an append behind a drafted answer is an append"


def test_a_stop_string_ends_the_answer(client: OpenAI, first_page: Spoken) -> None:
    whole = first_page.text
    stop = whole[len(whole) // 3 :][:6]
    answer = drafted(client, 0, stop=[stop])
    assert (answer.text, answer.finish) == (whole.partition(stop)[0], "stop")
    assert answer.usage.completion_tokens < NUM_ANSWERED


def test_a_client_that_leaves_ends_draft_and_answer(client: OpenAI, server: str, first_page: Spoken) -> None:
    """No request of it is alive in the engine afterwards, and the same turn has the answer of `exact`.

    It leaves while the draft is alive, and once more when the answer has begun.
    """
    session = new_session()
    Spoken(client, session, pages(0, is_folded=False), max_tokens=1)
    for phase in ("drafting", "verifying"):
        _leave(server, session, pages(0, is_folded=True), phase)
        deadline = time.monotonic() + 300
        while (num_alive := _num_alive(server)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert num_alive == 0, phase
    again = Spoken(client, session, pages(0, is_folded=True), acm={"speculate": True})
    assert (again.text, again.acm["receipt"]["moved_tokens"]) == (first_page.text, 0)


def _leave(server: str, session: str, messages: list[Any], phase: str) -> None:
    """Close the connection while a draft is alive, or behind the first token that is shown.

    On a machine on which nobody sees a draft alive, the answer has begun.
    """
    body = {"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 400, "stream": True}
    body |= {"session_id": session, "cache_salt": session, "acm": {"speculate": True}, "ignore_eos": True}
    connection = http.client.HTTPConnection(server.removeprefix("http://"), timeout=300)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    came, deadline = b"", time.monotonic() + 300
    if phase == "drafting":
        while _num_alive(server) < 2 and not _has_begun(connection.sock):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    else:
        answer = connection.getresponse()
        while came.count(b'"content"') < 2:
            line = answer.readline()
            assert line, came
            came += line
    connection.close()


def _has_begun(sock: socket.socket) -> bool:
    """Whether a token of the answer is there. The head of the answer and its role come before."""
    is_readable = bool(select.select([sock], [], [], 0)[0])
    return is_readable and sock.recv(2**16, socket.MSG_PEEK).count(b'"content"') >= 2


def _num_alive(server: str) -> int:
    """Requests that the engine has."""
    lines = httpx.get(f"{server}/metrics", timeout=300).text.splitlines()
    names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    return int(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(names)))


def test_what_cannot_be_verified_says_why(client: OpenAI) -> None:
    session = new_session()
    whole, folded = (pages(2, is_folded=is_folded, num_behind=1500) for is_folded in (False, True))
    first = Spoken(client, session, whole, acm={"speculate": True}, max_tokens=4)
    assert first.usage.prompt_tokens > MIN_PREFILL_TOKENS
    assert "no long text" in first.acm["speculation"]["reason"]
    sampled = Spoken(client, session, folded, acm={"speculate": True}, max_tokens=4, temperature=0.5)
    assert sampled.acm["speculation"] == {
        "drafted_tokens": 0,
        "accepted_tokens": 0,
        "reason": "sampling: temperature is 0.5, only greedy answers are verified",
    }
    with pytest.raises(openai.BadRequestError, match=r"acm\.speculate"):
        Spoken(client, session, folded, acm={"speculate": True, "fidelity": "reuse"})
    with pytest.raises(openai.BadRequestError, match=r"acm\.speculate"):
        Spoken(client, session, folded, acm={"speculate": "yes"})
