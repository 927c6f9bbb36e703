"""One server from its banner to its end by Ctrl-C, and what its operator sees in between."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import uuid
from argparse import Namespace
from pathlib import Path
from typing import Any

import httpx
import pytest

from acmserve.context.storage.session import SessionLimits
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.sqlite import Archive
from acmserve.plan.calibration import LEVELS, CalibratedShape, Calibration
from acmserve.plan.request import FIDELITIES
from acmserve.server.app.launch.banner import MAX_LINES, MEANINGS, banner_lines
from acmserve.server.http.tenants import Tenants
from tests.support import http
from tests.support.server.running_server import START_SECONDS, check_end
from tests.support.tenants.keyed_server import KeyedServer

SECRET = "The heron stands on one leg by the lighthouse."


def test_a_banner_says_what_was_started(keyed_server: KeyedServer) -> None:
    deadline = time.monotonic() + START_SECONDS
    while "  inspector " not in keyed_server.log and time.monotonic() < deadline:
        time.sleep(0.05)
    lines = keyed_server.log.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("acmserve is ready at "))
    banner = [lines[start]]
    banner += [line for line in lines[start + 1 : start + MAX_LINES] if line.startswith("  ")]
    assert banner == [
        f"acmserve is ready at {keyed_server.running.url.replace('127.0.0.1', '0.0.0.0')}",
        "  model       tiny, 4,096 tokens",
        "  fidelity    reuse: text behind an edit keeps its KV, moved: fast, and it still remembers what was removed",
        "  moves       allowed",
        f"  sessions    in {keyed_server.folder / 'data'}, unused ones for 168 hours",
        "  keys        asked for",
        "  precompute  off",
        "  inspector   /acm/ shows each session in a browser",
    ]
    assert "acmserve: background work ends in a layer: yes" in keyed_server.log


def test_a_banner_says_why_nothing_is_moved_and_who_may_come() -> None:
    assert set(MEANINGS) == set(FIDELITIES)
    section = {"data_dir": "d", "session_hours": 2.0, "precompute": "heal"}
    extra = {"default_fidelity": "reuse", "context": section}
    config = Namespace(kv_connector_extra_config=extra)
    args = Namespace(served_model_name=None, model="m", kv_transfer_config=config, api_key=["k"])
    lines = banner_lines(args, "unix:/s", 9, "kv cache: fp8")
    assert len(lines) <= MAX_LINES
    assert lines[0] == "acmserve is ready at unix:/s"
    assert lines[3:] == [
        "  moves       none, every answer is exact: kv cache: fp8; what acmserve costs here: acmserve doctor m",
        "  sessions    in d, unused ones for 2 hours",
        "  keys        asked for",
        "  precompute  heal, between two turns; --precompute off turns it off",
        "  inspector   /acm/ shows each session in a browser",
    ]
    assert banner_lines(args, "unix:/s", 9, None)[3] == "  moves       allowed"


def test_a_banner_says_what_a_server_is_without_flags() -> None:
    args = Namespace(
        served_model_name=None, model="m", kv_transfer_config=Namespace(kv_connector_extra_config={}), api_key=None
    )
    assert banner_lines(args, "unix:/s", 9, None)[2:] == [
        "  fidelity    exact: text behind an edit is computed again, token for token as vLLM answers",
        "  moves       allowed, where a request asks for reuse, repair or auto",
        "  sessions    in memory until the server stops, --data-dir DIR keeps them",
        "  keys        none, whoever reaches the address reads every session",
        "  precompute  off",
        "  inspector   /acm/ shows each session in a browser",
    ]


def test_a_banner_says_what_auto_was_calibrated_on(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    shape = CalibratedShape("L", 1, 2, 3)
    file.write_text(Calibration("qwen", shape, "careful", LEVELS["careful"]).as_json({}), encoding="utf-8")
    config = Namespace(kv_connector_extra_config={"default_fidelity": "auto", "calibration": str(file)})
    args = Namespace(served_model_name=None, model="m", kv_transfer_config=config, api_key=["k"])
    lines = banner_lines(args, "unix:/s", 9, None)
    assert lines[3:5] == ["  auto        at level careful, as measured on qwen", "  moves       allowed"]
    assert len(lines) <= MAX_LINES


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello."}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hello."}]}),
        ("/v1/responses", {"input": "Hello.", "max_output_tokens": 4}),
    ],
)
def test_a_misspelt_field_is_refused_on_every_route(path: str, body: dict[str, Any], keyed_server: KeyedServer) -> None:
    for extra, meant in (
        ({"session": "a"}, "'session_id'"),
        ({"session_id": "a", "acm": {"fidelty": "exact"}}, "'fidelity'"),
        ({"session_id": "a", "acm": {"budgett": 9}}, "'budget'"),
        ({"fidelity": "reuse"}, "'acm.fidelity'"),
    ):
        refused = keyed_server.ask(path, body | extra)
        assert refused.status_code == 400
        assert f"Did you mean {meant}?" in refused.json()["error"]["message"]
    passed = keyed_server.ask(path, body | {"store": True, "user": "me", "a_field_of_nobody": {"x": 1}})
    assert passed.status_code == 200, passed.text


def test_a_misspelt_field_is_refused_on_our_own_routes(keyed_server: KeyedServer) -> None:
    keyed_server.chat("edited", SECRET)
    for path, body, meant in (
        ("edits", {"edit": []}, "'edits'"),
        ("edits", {"edits": [{"op": "fold", "mesages": {"start": 0, "end": 1}}]}, "'messages'"),
        ("budget", {"max_token": 9}, "'max_tokens'"),
    ):
        send = keyed_server.put if path == "budget" else keyed_server.post
        refused = send(f"/v1/acm/sessions/edited/{path}", body)
        assert refused.status_code == 400
        assert f"Did you mean {meant}?" in refused.json()["error"]["message"]


def test_the_log_has_one_line_for_each_event_and_no_text(keyed_server: KeyedServer) -> None:
    session, texts = f"log-{uuid.uuid4().hex}", [f"{SECRET} {number}. " * 30 for number in range(4)]
    keyed_server.chat(session, *texts, "And now?")
    path = f"/v1/acm/sessions/{session}"
    ids = {}
    for op, start in (("fold", 0), ("redact", 2)):
        edit = {"op": op, "messages": {"start": start, "end": start + 1}}
        (done,) = keyed_server.post(f"{path}/edits", {"edits": [edit]}).raise_for_status().json()["edits"]
        ids[op] = done["fragment_id"]
    keyed_server.put(f"{path}/budget", {"max_tokens": 400, "policy": "recency"}).raise_for_status()
    keyed_server.post(f"{path}/evict", {}).raise_for_status()
    body = {"session_id": session, "messages": [{"role": "user", "content": "Hello."}], "prompt_logprobs": 1}
    keyed_server.ask("/v1/chat/completions", {**body, "acm": {"fidelity": "reuse"}}).raise_for_status()
    lines = [json.loads(line) for line in keyed_server.log.splitlines() if line.startswith('{"time"')]
    events = {line["event"]: line for line in lines if line.get("session") == session}
    assert set(events) == {"edit", "redaction", "eviction", "fallback"}
    assert events["edit"]["op"] == "fold"
    assert [events[event]["fragment"] for event in ("edit", "redaction")] == [ids["fold"], ids["redact"]]
    assert events["edit"]["tokens_before"] > events["edit"]["tokens_after"]
    assert SECRET[:20] not in keyed_server.log


def test_health_knows_the_engine_and_the_file(keyed_server: KeyedServer) -> None:
    answer = http.get(f"{keyed_server.running.url}/health")
    assert (answer.status_code, answer.json()) == (200, {"engine": "running", "sessions": "ok"})


def test_turns_are_timed_by_kind(keyed_server: KeyedServer) -> None:
    def counted() -> dict[str, float]:
        text = http.get(f"{keyed_server.running.url}/metrics").text
        found = re.findall(r'^acmserve:first_token_seconds_count\{turn="(\w+)"\} (\S+)', text, re.MULTILINE)
        return {turn: float(number) for turn, number in found}

    before, session = counted(), uuid.uuid4().hex
    said = [SECRET * 20, "Yes.", SECRET * 4]
    said[1] = keyed_server.chat(session, said[0])["choices"][0]["message"]["content"]
    keyed_server.chat(session, *said)
    edit = {"op": "fold", "messages": {"start": 0, "end": 1}}
    keyed_server.post(f"/v1/acm/sessions/{session}/edits", {"edits": [edit]}).raise_for_status()
    keyed_server.chat(session, *said, "Yes.", "Go on.")
    after = counted()
    assert {turn: after[turn] - before[turn] for turn in after} == {
        "first": 1.0,
        "append": 1.0,
        "edited": 1.0,
        "precomputed": 0.0,
    }


def test_ctrl_c_ends_it_and_keeps_its_sessions(keyed_server: KeyedServer) -> None:
    """The last test of this file: a terminal sends the signal to every process of the server.

    Whoever listens to events does not hold it up, nor does what is computed for nobody yet.
    """
    keyed_server.chat("kept", SECRET)
    keyed_server.chat("prepared", SECRET, "Yes.", SECRET * 150)
    process = keyed_server.running.process
    url = f"{keyed_server.running.url}/v1/acm/events"
    with httpx.stream("GET", url, headers=keyed_server.headers, timeout=START_SECONDS, verify=False) as listening:
        told = listening.iter_lines()
        assert next(told) == "event: opened"
        fold = {"edits": [{"op": "fold", "messages": {"start": 2, "end": 3}}]}
        keyed_server.post("/v1/acm/sessions/prepared/prepare", fold).raise_for_status()
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=START_SECONDS)
        assert [line for line in told if line.startswith("event: ")] == [], "the stream has an end"
    check_end(process.returncode, keyed_server.folder / "server.log")
    store = SessionStore(SessionLimits(), Archive(keyed_server.folder / "data"))
    try:
        tenant = Tenants(has_api_keys=True).of({"authorization": keyed_server.headers["Authorization"]})
        assert {session_id for _, session_id in (head.key for head in store.list(tenant))} >= {"kept", "edited"}
    finally:
        store.close()
