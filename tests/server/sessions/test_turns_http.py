"""What a session's turns and totals say, against `/metrics` and against what the answers said: to the token.

The real engine, the scripted model, the vendors' clients. The server is shared, and no other test runs beside this one,
so what the counters rise by is what this session was served.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from acmserve.engine.plugin.metrics import TOKEN_KEYS
from tests.support import http
from tests.support.routes.route_clients import CHAT, MESSAGES, RESPONSES, Agent, Message
from tests.support.server.scripted_server import MODEL
from tests.support.server.scripts import log_lines, new_session, tool_call
from tests.support.soak.storm import metric

REQUESTS, FALLBACKS, USED, BACKGROUND = (
    f"acmserve:{name}_total" for name in ("requests", "fallbacks", "precomputed_used_tokens", "precomputed_tokens")
)
COUNTERS = [f"acmserve:{key}_total" for key in TOKEN_KEYS]
LOG = log_lines(60)
CUT = tool_call("fragment_context", start_marker="line 0:", end_marker="end of the log", num_fragments=3)
SEARCH = tool_call("search_context", query="line 7:", max_results=1, context_size=50)


class Counters:
    """What the counters of `/metrics` have risen by since this was made."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.before = self.read()

    def read(self) -> Mapping[str, int]:
        """The counts of a step come with the next one, so a short request without a session goes in front."""
        plain = {"model": MODEL, "messages": [{"role": "user", "content": "Count."}], "max_tokens": 2}
        http.post(f"{self.server}/v1/chat/completions", json=plain).raise_for_status()
        return {name: int(metric(self.server, name)) for name in (*COUNTERS, REQUESTS, FALLBACKS, USED, BACKGROUND)}

    def risen(self, num_requests: int) -> Mapping[str, int]:
        """Once so many requests are counted."""
        for _ in range(6000):
            now = self.read()
            risen = {name: now[name] - self.before[name] for name in now}
            if risen[REQUESTS] >= num_requests:
                return risen
            time.sleep(0.05)
        raise AssertionError(f"{risen[REQUESTS]} of {num_requests} requests were counted")


class Told:
    """A session as its client knows it: the history, and every receipt that an answer carried."""

    def __init__(self, server: str) -> None:
        self.server, self.session = server, new_session()
        self.history: list[Message] = [{"role": "system", "content": f"{self.session}: you keep records."}]
        self.receipts: list[Mapping[str, Any]] = []
        self.evicted = 0

    def ask(self, text: str, script: list[str], route: str = CHAT, *, stream: bool = False, **acm: Any) -> Any:
        self.history.append({"role": "user", "content": text})
        answer = Agent(self.server, route, stream).ask(self.session, self.history, script, acm=acm or None)
        steps = answer.acm.get("steps") or [{"receipt": answer.acm["receipt"], "budget": answer.acm.get("budget")}]
        self.receipts += [step["receipt"] for step in steps]
        self.evicted += sum((step.get("budget") or {}).get("evicted_tokens", 0) for step in steps)
        self.history.append(answer.as_message())
        return answer

    def url(self, path: str) -> str:
        return f"{self.server}/v1/acm/sessions/{self.session}/{path}"

    def get(self, path: str) -> Any:
        return http.get(self.url(path)).raise_for_status().json()

    def usage(self) -> Any:
        """What `/usage` says of the session. It was used last, and no other test runs beside this one."""
        found = http.get(f"{self.server}/v1/acm/usage", params={"limit": 1}).raise_for_status().json()["data"][0]
        assert found["session_id"] == self.session
        return found

    def post(self, path: str, body: Any = None) -> Any:
        return http.post(self.url(path), json=body).raise_for_status().json()


@pytest.fixture
def told(scripted_server: str) -> Told:
    return Told(scripted_server)


def prepare(told: Told, edits: Any) -> None:
    """Have the result of edits precomputed, and wait for it."""
    name = told.post("prepare", edits)["prepare_id"]
    for _ in range(6000):
        found = told.get(f"prepare/{name}")
        if found["status"] != "pending":
            assert found["status"] == "ready", found
            return
        time.sleep(0.05)
    pytest.fail("the preparation never ends")


def leave(told: Told) -> None:
    """A client that leaves once it has read something of its answer."""
    body = {"model": MODEL, "session_id": told.session, "stream": True, "max_tokens": 20_000, "ignore_eos": True}
    body |= {"messages": [*told.history, {"role": "user", "content": "Go on and on."}]}
    with httpx.stream("POST", f"{told.server}/v1/chat/completions", json=body, timeout=None) as answer:
        lines = answer.iter_lines()  # the connection is closed with it
        next(line for line in lines if '"content":"' in line and '"content":""' not in line)
        assert told.usage()["running"]


def test_totals_equal_the_metrics_to_the_token(told: Told, scripted_server: str) -> None:
    counters = Counters(scripted_server)
    told.ask(f"The log:\n{LOG}\nend of the log. What was in line 7?", ["It was 49."], fidelity="reuse")
    told.ask(f"And this:\n{log_lines(60, first=100)}", ["Read."], MESSAGES, fidelity="reuse")
    told.post("edits", {"edits": [{"op": "fold", "messages": {"start": 1, "end": 2}}]})
    moved = told.ask("What now?", ["Nothing."], RESPONSES, stream=True, fidelity="reuse")
    assert moved.acm["receipt"]["moved_tokens"] > 500
    appended = told.ask("And now?", ["Still nothing."], stream=True, fidelity="reuse")
    assert appended.acm["receipt"]["computed_tokens"] < 64
    told.ask(f"The log:\n{LOG}\nend of the log. Cut it.", [CUT, SEARCH, "It was 49."], stream=True, tools="sculptor")
    told.ask("Good.", ["Yes."])  # without tools, as the turn that is prepared
    edits = {"edits": [{"op": "fold", "messages": {"start": 3, "end": 4}}]}
    prepare(told, edits)
    told.post("edits", edits)
    assert told.ask("And in line 9?", ["It was 81."]).acm["receipt"]["precomputed_tokens"] > 500
    budget = {"max_tokens": 1200, "low_watermark": 600, "policy": "recency"}
    told.ask("Be brief.", ["Yes."], budget=budget)
    assert told.evicted > 0
    leave(told)
    told.ask("Are you there?", ["Yes."], MESSAGES, stream=True)

    totals, turns = told.get("totals"), told.get("turns")
    risen = counters.risen(totals["turns"])
    assert {key: totals[key] for key in TOKEN_KEYS} == {key: risen[f"acmserve:{key}_total"] for key in TOKEN_KEYS}
    assert (totals["turns"], totals["fallbacks"]) == (risen[REQUESTS], risen[FALLBACKS])
    assert totals["precomputed_tokens"] == risen[USED] > 500
    assert totals["background_tokens"] == risen[BACKGROUND] > 500
    assert totals["turns_without_receipt"] == 0
    used = told.usage()
    assert used["totals"] == {name: totals[name] for name in used["totals"]}
    assert (used["running"], used["last_turn"]["end"]) == (False, "answered")
    assert totals["saved"]["tokens"] == totals["moved_tokens"] + totals["precomputed_tokens"]
    assert totals["saved"]["seconds"] > 0

    assert [turn["index"] for turn in turns["data"]] == list(range(totals["turns"]))
    answered = [turn for turn in turns["data"] if turn["end"] == "answered"]
    assert [turn["receipt"] for turn in answered] == told.receipts
    (left,) = (turn for turn in turns["data"] if turn["end"] != "answered")
    assert left["end"] == "aborted"
    assert left["receipt"]["kept_tokens"] > 0
    steps = [(turn["route"].removeprefix("/v1/"), turn["step"]) for turn in answered]
    loop = [("chat/completions", step) for step in range(3)]
    chat = ("chat/completions", None)
    assert steps == [chat, ("messages", None), ("responses", None), chat, *loop, *[chat] * 3, ("messages", None)]
    assert [[edit["kind"] for edit in turn["edits"]] for turn in answered if turn["edits"]] == [["fold"], ["fold"]]
    evicted = [one for turn in answered for one in turn["evictions"]]
    assert {(one["kind"], one["name"]) for one in evicted} == {("budget", "recency")}
    assert sum(one["tokens"] for one in evicted) == totals["evicted_tokens"] == told.evicted
    for turn in answered:
        assert 0 < turn["ttft_s"] <= turn["total_s"], turn
        assert turn["output_tokens"] > 0


def test_what_others_are_served_is_in_the_metrics_and_in_no_totals_of_this_session(
    told: Told, scripted_server: str
) -> None:
    """The control: the counters see a token that this session was not served."""
    counters, other = Counters(scripted_server), Told(scripted_server)
    told.ask("Hello.", ["Hello."])
    before = told.get("totals")
    other.ask(f"The log:\n{LOG}\nend of the log.", ["Read."])
    after, added = told.get("totals"), other.get("totals")
    risen = counters.risen(before["turns"] + added["turns"])
    assert added["computed_tokens"] > 500
    assert {key: after[key] for key in TOKEN_KEYS} == {key: before[key] for key in TOKEN_KEYS}
    assert {key: risen[f"acmserve:{key}_total"] for key in TOKEN_KEYS} == {
        key: before[key] + added[key] for key in TOKEN_KEYS
    }


def test_edits_of_the_model_and_a_summary_of_the_server_are_told(told: Told, scripted_server: str) -> None:
    counters = Counters(scripted_server)
    cut = told.ask(f"The log:\n{LOG}\nend of the log.", [CUT, "Cut."], tools="sculptor")
    first, second, _ = (cut.acm["steps"][0]["operations"][0])["fragment_ids"]
    fold = "".join(tool_call("fold_fragment", fragment_id=fragment_id) for fragment_id in (first, second))
    told.ask("Fold it.", [fold, tool_call("restore_fragment", fragment_id=first), "Done."], tools="sculptor")
    told.ask("Go on.", [log_lines(30)])
    budget = {"max_tokens": 1500, "low_watermark": 900, "policy": "compact"}
    summed = told.ask("Go on.", ["A summary: nothing of note.", "Yes."], budget=budget)
    turns, totals = told.get("turns")["data"], told.get("totals")
    assert counters.risen(totals["turns"])[REQUESTS] == totals["turns"]
    named = [(turn["step"], edit["kind"], edit["by"], edit["fragment_ids"]) for turn in turns for edit in turn["edits"]]
    assert named == [
        (1, "fold", "model", [first]),
        (1, "fold", "model", [second]),
        (2, "restore", "model", [first]),
    ]
    assert totals["edits"] == 3
    assert [turn["purpose"] for turn in turns].count("summary") == (
        summed.acm["budget"]["summary"]["form"] == "appended"
    )


def test_a_request_that_vllm_answers_by_itself_counts_for_the_session_of_its_name(
    told: Told, scripted_server: str
) -> None:
    told.ask("Hello.", ["Hello."])
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 2, "session_id": told.session}
    answer = http.post(f"{scripted_server}/v1/completions", json=body).raise_for_status().json()
    last = told.get("turns")["data"][-1]
    assert (last["route"], last["receipt"]) == ("/v1/completions", answer["acm"]["receipt"])


def test_branches_of_the_model_are_named(told: Told) -> None:
    work = [tool_call("branch", description="read", prompt="Read line 7."), SEARCH, tool_call("return", message="49")]
    tools = ["sculptor", "branch"]
    done = told.ask(f"The log:\n{LOG}\nend of the log.", [*work, "It was 49."], tools=tools)
    (branch,) = done.acm["branches"]
    told.ask("Try again.", [tool_call("branch", description="fail", prompt="Fail."), ""], tools=tools)
    turns = told.get("turns")["data"]
    ran_in = branch["branch_id"]
    assert [turn["branch"] for turn in turns[:4]] == [None, ran_in, ran_in, None]
    named = [(turn["index"], edit["kind"], edit["by"]) for turn in turns for edit in turn["edits"]]
    assert named[:3] == [(1, "branch", "model"), (3, "return", "model"), (5, "branch", "model")]
    (returned,) = turns[3]["edits"]
    assert 0 < returned["tokens_saved"] < branch["num_tokens"]
    waiting = [edit["kind"] for edit in told.get("turns")["waiting"]["edits"]]
    assert [kind for _, kind, _ in named[3:]] + waiting == ["branch_failed"]
    assert turns[5]["branch"] not in (None, ran_in)
