"""Two API servers for real, beside one: the same turns give the same texts, counts, folds, budgets and lists.

Each request has a connection of its own, so that both processes are reached. What they count says that they were.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.models.tiny_model import write_tiny_model
from tests.support import http
from tests.support.server.running_server import START_SECONDS, Running, server_process
from tests.support.server.scripted_server import TEMPLATE

pytestmark = pytest.mark.skipif("ACMSERVE_FLEET" not in os.environ, reason="three processes and more: `make fleet`")

NAMES = [f"agent-{number}" for number in range(4)]
NUM_TURNS = 10
FLAGS = (
    *("--max-model-len", "4096", "--block-size", "32", "--served-model-name", "m", "--fidelity", "reuse"),
    *("--chat-template", str(TEMPLATE)),
)
COUNTS = ("prompt_tokens", "kept_tokens", "moved_tokens", "computed_tokens")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _streamed(url: str, body: dict[str, Any]) -> tuple[str, dict[str, Any], int]:
    """The text of a streamed answer, its receipt, and in how many pieces it came."""
    lines = http.post(f"{url}/v1/chat/completions", json={**body, "stream": True}).raise_for_status().text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    texts = [choice["delta"].get("content") or "" for event in events for choice in event.get("choices", ())]
    receipt = next(event["acm"]["receipt"] for event in reversed(events) if event.get("acm"))
    return "".join(texts), receipt, len(events)


def _asked(url: str, body: dict[str, Any]) -> tuple[str, dict[str, Any], int]:
    answer = http.post(f"{url}/v1/chat/completions", json=body).raise_for_status().json()
    return answer["choices"][0]["message"]["content"] or "", answer["acm"]["receipt"], 0


def _play(url: str, name: str) -> list[Any]:
    """Turns of one session, every other one streamed, with a fold, a budget and a redaction between them.

    The watermark is given, since that of `auto` is weighed with what the clock of one process has seen.
    """
    session, seen = f"{url}/v1/acm/sessions/{name}", []
    messages = [user(f"{name}: {'The harbour log. ' * 60}")]
    for number in range(NUM_TURNS):
        body = {
            "model": "m",
            "session_id": name,
            "messages": messages,
            "max_tokens": 6,
            "temperature": 1,
            "seed": 100 * NAMES.index(name) + number,
        }
        text, receipt, pieces = (_streamed if number % 2 else _asked)(url, body)
        assert pieces >= 2 or not number % 2, "a role and an end at least, and as many pieces as the clock makes"
        seen.append((text, [receipt.get(count) for count in COUNTS]))
        messages = [*messages, {"role": "assistant", "content": text}, user(f"{number}: {'Go on, please. ' * 12}")]
        if number in (2, 5):
            edit = {"op": "fold" if number == 2 else "redact", "messages": {"start": number - 2, "end": number - 1}}
            edited = http.post(f"{session}/edits", json={"edits": [edit]})
            assert edited.status_code == 200, edited.text
        if number == 7:
            http.put(f"{session}/budget", json={"max_tokens": 500, "low_watermark": 300}).raise_for_status()
    seen.append([row["message"] for row in http.get(f"{session}/context").json()["messages"]])
    totals = http.get(f"{session}/totals").json()
    seen.append({name: value for name, value in totals.items() if name != "saved" and type(value) is int})
    return seen


def _race(url: str) -> list[int]:
    """Requests of one session at the same time: each grows it by its own message and answer, one after another."""
    body = {"model": "m", "session_id": "raced", "max_tokens": 4, "temperature": 0, "messages": [user("Begin. " * 40)]}
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: http.post(f"{url}/v1/chat/completions", json=body), range(6)))
    assert {each.status_code for each in answers} == {200}
    turns = http.get(f"{url}/v1/acm/sessions/raced/turns").json()
    return [turns["num_turns"], http.get(f"{url}/v1/acm/sessions/raced").json()["num_messages"]]


def _everything(url: str) -> dict[str, Any]:
    found: dict[str, Any] = {name: _play(url, name) for name in NAMES}
    found["raced"] = _race(url)
    listed = [http.get(f"{url}/v1/acm/sessions?limit=50").json()["data"] for _ in range(6)]
    found["listed"] = [[each["session_id"] for each in data] for data in listed]
    usage = http.get(f"{url}/v1/acm/usage").json()
    found["usage"] = [usage["num_sessions"], sorted(each["session_id"] for each in usage["data"])]
    return found


def _served(folder: Path, model: Path, *flags: str, then: Callable[[Running], Any]) -> Any:
    folder.mkdir()
    with server_process(model, folder / "log", [*FLAGS, *flags], tiny=True) as running:
        return then(running)


def _reached(url: str) -> dict[str, float]:
    lines = http.get(f"{url}/metrics").text.splitlines()
    counted = [line for line in lines if line.startswith("acmserve:session_requests_total")]
    return {line.partition('reached="')[2].partition('"')[0]: float(line.rpartition(" ")[2]) for line in counted}


def _beside(running: Running) -> tuple[dict[str, Any], dict[str, float], dict[str, float]]:
    found = _everything(running.url)
    gauges = [line for line in http.get(f"{running.url}/metrics").text.splitlines() if line.startswith("acmserve:sess")]
    return found, _reached(running.url), {line.split()[0]: float(line.split()[1]) for line in gauges if "{" not in line}


def _first_difference(key: str, one: list[Any], two: list[Any]) -> str:
    index = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    return f"{key}[{index}]: one {one[index:][:1]}, two {two[index:][:1]}"


def test_two_are_as_one(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", 4096)
    one, _, alone = _served(tmp_path / "one", model, then=_beside)
    folder = tmp_path / "data"
    flags = ["--api-server-count", "2", "--data-dir", str(folder)]
    two, reached, gauges = _served(tmp_path / "two", model, *flags, then=_beside)
    assert len({turn[0] for name in NAMES for turn in one[name] if isinstance(turn, tuple)}) > NUM_TURNS, "texts differ"
    assert min(reached.values()) > 10, "both processes were reached, and handed over"
    assert [_first_difference(key, one[key], two[key]) for key in one if two[key] != one[key]] == []
    assert gauges["acmserve:sessions"] == alone["acmserve:sessions"] == len(NAMES) + 1

    def restarted(running: Running) -> list[int]:
        names = [*NAMES, "raced"]
        found = [http.get(f"{running.url}/v1/acm/sessions/{name}/context").status_code for name in names]
        victim = running.child("VLLM::APIServer_1")
        os.kill(victim.pid, signal.SIGKILL)
        assert running.process.wait(START_SECONDS) != 0, (
            "vLLM ends the whole server, so nothing is served without an owner"
        )
        return found

    assert _served(tmp_path / "again", model, *flags, then=restarted) == [200] * 5
    assert len(list(folder.glob("api-server-*/sessions.sqlite3"))) == 2
