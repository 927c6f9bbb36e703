"""One server from its banner to its end by Ctrl-C, and what its operator sees in between."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import uuid
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from acmserve.bench.models.tiny_model import write_tiny_model
from acmserve.context.storage.session import SessionLimits
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.sqlite import Archive
from acmserve.models.smollm2 import TOOLS_TEMPLATE
from acmserve.plan.calibration import LEVELS, CalibratedShape, Calibration
from acmserve.plan.request import FIDELITIES
from acmserve.server.app.launch.banner import MAX_LINES, MEANINGS, banner_lines
from tests.support import http
from tests.support.server.running_server import START_SECONDS, Running, check_end, server_process

MODEL = "tiny"
SECRET = "The heron stands on one leg by the lighthouse."


@dataclass(frozen=True)
class Watched:
    """A server, and the folder with its log and its sessions."""

    running: Running
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "server.log").read_text()

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return http.post(f"{self.running.url}{path}", json={"model": MODEL, "max_tokens": 4, **body})

    def chat(self, session_id: str, *texts: str) -> dict[str, Any]:
        messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]
        answer = self.post("/v1/chat/completions", {"session_id": session_id, "messages": messages})
        found: dict[str, Any] = answer.raise_for_status().json()
        return found


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    flags = ["--served-model-name", MODEL, "--chat-template", str(TOOLS_TEMPLATE), "--data-dir", str(folder / "data")]
    flags += ["--log-format", "json"]
    with server_process(write_tiny_model(folder / "model", 4096), folder / "server.log", flags, tiny=True) as running:
        yield Watched(running, folder)


def test_a_banner_says_what_was_started(watched: Watched) -> None:
    deadline = time.monotonic() + START_SECONDS
    while "  inspector " not in watched.log and time.monotonic() < deadline:
        time.sleep(0.05)
    lines = watched.log.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("acmserve is ready at "))
    banner = [lines[start]]
    banner += [line for line in lines[start + 1 : start + MAX_LINES] if line.startswith("  ")]
    assert banner == [
        f"acmserve is ready at {watched.running.url}",
        "  model       tiny, 4,096 tokens",
        "  fidelity    exact: text behind an edit is computed again, token for token as vLLM answers",
        "  moves       allowed, where a request asks for reuse, repair or auto",
        f"  sessions    in {watched.folder / 'data'}, unused ones for 168 hours",
        "  keys        none, whoever reaches the address reads every session",
        "  precompute  off",
        "  inspector   /acm/ shows each session in a browser",
    ]


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
        "  moves       none, every answer is exact: kv cache: fp8",
        "  sessions    in d, unused ones for 2 hours",
        "  keys        asked for",
        "  precompute  heal",
        "  inspector   /acm/ shows each session in a browser",
    ]
    assert banner_lines(args, "unix:/s", 9, None)[3] == "  moves       allowed"


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
        ("/v1/responses", {"input": "Hello."}),
    ],
)
def test_a_misspelt_field_is_refused_on_every_route(path: str, body: dict[str, Any], watched: Watched) -> None:
    for extra, meant in (
        ({"session": "a"}, "'session_id'"),
        ({"session_id": "a", "acm": {"fidelty": "exact"}}, "'fidelity'"),
        ({"session_id": "a", "acm": {"budgett": 9}}, "'budget'"),
        ({"fidelity": "reuse"}, "'acm.fidelity'"),
    ):
        refused = watched.post(path, body | extra)
        assert refused.status_code == 400
        assert f"Did you mean {meant}?" in refused.json()["error"]["message"]
    passed = watched.post(path, body | {"store": True, "user": "me", "a_field_of_nobody": {"x": 1}})
    assert passed.status_code == 200, passed.text


def test_a_misspelt_field_is_refused_on_our_own_routes(watched: Watched) -> None:
    watched.chat("edited", SECRET)
    url = f"{watched.running.url}/v1/acm/sessions/edited"
    for path, body, meant in (
        ("edits", {"edit": []}, "'edits'"),
        ("edits", {"edits": [{"op": "fold", "mesages": {"start": 0, "end": 1}}]}, "'messages'"),
        ("budget", {"max_token": 9}, "'max_tokens'"),
    ):
        refused = (http.put if path == "budget" else http.post)(f"{url}/{path}", json=body)
        assert refused.status_code == 400
        assert f"Did you mean {meant}?" in refused.json()["error"]["message"]


def test_the_log_has_one_line_for_each_event_and_no_text(watched: Watched) -> None:
    session, texts = f"log-{uuid.uuid4().hex}", [f"{SECRET} {number}. " * 30 for number in range(4)]
    watched.chat(session, *texts, "And now?")
    url = f"{watched.running.url}/v1/acm/sessions/{session}"
    ids = {}
    for op, start in (("fold", 0), ("redact", 2)):
        edit = {"op": op, "messages": {"start": start, "end": start + 1}}
        (done,) = http.post(f"{url}/edits", json={"edits": [edit]}).raise_for_status().json()["edits"]
        ids[op] = done["fragment_id"]
    http.put(f"{url}/budget", json={"max_tokens": 400, "policy": "recency"}).raise_for_status()
    http.post(f"{url}/evict", json={}).raise_for_status()
    body = {"session_id": session, "messages": [{"role": "user", "content": "Hello."}], "prompt_logprobs": 1}
    watched.post("/v1/chat/completions", {**body, "acm": {"fidelity": "reuse"}}).raise_for_status()
    lines = [json.loads(line) for line in watched.log.splitlines() if line.startswith('{"time"')]
    events = {line["event"]: line for line in lines if line.get("session") == session}
    assert set(events) == {"edit", "redaction", "eviction", "fallback"}
    assert events["edit"]["op"] == "fold"
    assert [events[event]["fragment"] for event in ("edit", "redaction")] == [ids["fold"], ids["redact"]]
    assert events["edit"]["tokens_before"] > events["edit"]["tokens_after"]
    assert SECRET[:20] not in watched.log


def test_health_knows_the_engine_and_the_file(watched: Watched) -> None:
    answer = http.get(f"{watched.running.url}/health")
    assert (answer.status_code, answer.json()) == (200, {"engine": "running", "sessions": "ok"})


def test_turns_are_timed_by_kind(watched: Watched) -> None:
    def counted() -> dict[str, float]:
        text = http.get(f"{watched.running.url}/metrics").text
        found = re.findall(r'^acmserve:first_token_seconds_count\{turn="(\w+)"\} (\S+)', text, re.MULTILINE)
        return {turn: float(number) for turn, number in found}

    before, session = counted(), uuid.uuid4().hex
    said = [SECRET * 20, "Yes.", SECRET * 4]
    said[1] = watched.chat(session, said[0])["choices"][0]["message"]["content"]
    watched.chat(session, *said)
    edit = {"op": "fold", "messages": {"start": 0, "end": 1}}
    url = f"{watched.running.url}/v1/acm/sessions/{session}/edits"
    http.post(url, json={"edits": [edit]}).raise_for_status()
    watched.chat(session, *said, "Yes.", "Go on.")
    after = counted()
    assert {turn: after[turn] - before[turn] for turn in after} == {
        "first": 1.0,
        "append": 1.0,
        "edited": 1.0,
        "precomputed": 0.0,
    }


def test_ctrl_c_ends_it_and_keeps_its_sessions(watched: Watched) -> None:
    """The last test of this file: a terminal sends the signal to every process of the server.

    Whoever listens to events does not hold it up.
    """
    watched.chat("kept", SECRET)
    process = watched.running.process
    url = f"{watched.running.url}/v1/acm/events"
    with httpx.stream("GET", url, timeout=START_SECONDS, verify=False) as listening:
        told = listening.iter_lines()
        assert next(told) == "event: opened"
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=START_SECONDS)
        assert [line for line in told if line.startswith("event: ")] == [], "the stream has an end"
    check_end(process.returncode, watched.folder / "server.log")
    store = SessionStore(SessionLimits(), Archive(watched.folder / "data"))
    try:
        assert {session_id for _, session_id in (head.key for head in store.list(""))} >= {"kept", "edited"}
    finally:
        store.close()
