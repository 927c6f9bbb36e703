"""`acmserve top` against the real routes: a table, a JSON object, errors of one line. tests/top has the screen."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from acmserve.cli import main
from acmserve.server.context.server import ContextServer
from acmserve.top.columns import COLUMNS
from tests.support import http
from tests.support.recorded_turns import after_all, answered, receipt
from tests.support.server.acm_app import HISTORY, SESSIONS, make_app, make_client, make_server
from tests.support.top.on_port import on_port


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no server that does not answer."""
    monkeypatch.setattr("acmserve.cli.top._SECONDS", http.SECONDS)


@pytest.fixture(scope="module")
def core() -> ContextServer:
    core = make_server()
    client = make_client(core)
    for name in ("agent 1", "agent-2", "other"):
        client.post(SESSIONS, json={"session_id": name, "messages": HISTORY}).raise_for_status()
    client.put(f"{SESSIONS}/other/budget", json={"max_tokens": 600}).raise_for_status()
    moved = receipt(3, 40, 5, fallback_reason="lora", precomputed_tokens=2)
    core.store.record(core.store.get("", "agent-2"), after_all([answered(receipt=moved, prompt_tokens=48), 12_345]))
    return core


@pytest.fixture(scope="module")
def url(core: ContextServer) -> Iterator[str]:
    with on_port(make_app(core)) as url:
        yield url


def test_one_table_for_scripts(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", url, "--once", "--sort", "session", "--reverse"]) == 0
    titles, *rows = capsys.readouterr().out.splitlines()
    assert titles.split() == [column.title for column in COLUMNS.values()]
    assert [row.split("  ")[0] for row in rows] == ["other", "agent-2", "agent 1"]
    cells = dict(zip(COLUMNS, rows[1].split(), strict=True))
    assert {name: cells[name] for name in ("turns", "prompt", "kept", "moved", "computed")} == {
        "turns": "1",
        "prompt": "48",
        "kept": "3",
        "moved": "40",
        "computed": "5",
    }
    assert (cells["precomputed"], cells["background"], cells["fallbacks"]) == ("2", "12345", "1")
    assert (cells["of"], cells["budget"], cells["full"], cells["state"]) == ("-", "-", "-", "idle")
    assert "600" in rows[0]


def test_one_object_is_what_the_route_says(url: str, core: ContextServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", url, "--json", "--filter", "AGENT"]) == 0
    told = json.loads(capsys.readouterr().out)
    given = make_client(core).get("/v1/acm/usage").json()
    assert told["sessions"] == [one for one in given["data"] if one["session_id"].startswith("agent")]
    assert (told["num_sessions"], told["has_more"]) == (3, False)


def test_to_look_is_no_use_of_a_session(url: str, core: ContextServer, capsys: pytest.CaptureFixture[str]) -> None:
    before = [(head.session_id, head.used_at) for head in core.store.list("")]
    assert main(["top", url, "--once", "--limit", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert [(head.session_id, head.used_at) for head in core.store.list("")] == before


class Stranger(BaseHTTPRequestHandler):
    """Answers as other servers do: the status stands in the path."""

    def do_GET(self) -> None:
        status = int(self.path[1:4])
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b'{"error": "Unauthorized"}' if status == 401 else b"<html>\x1b[2J</html>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def stranger() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Stranger)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "flags", "said"),
    [
        (401, [], "asks for an API key; give it with --api-key"),
        (401, ["--api-key", "k"], "refuses this API key"),
        (404, [], "is no acmserve of this version"),
        (405, [], "is no acmserve of this version"),
        (200, [], "is no acmserve of this version"),
        (302, [], "is no acmserve of this version"),
        (503, [], "refused: <html>"),
    ],
)
def test_another_answer_is_one_line(
    stranger: str,
    status: int,
    flags: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ACMSERVE_API_KEY", raising=False)
    assert main(["top", f"{stranger}/{status}", "--once", *flags]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert "\x1b" not in shown.err


def test_no_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        for url in (f"http://127.0.0.1:{free.getsockname()[1]}", "localhost", "http://[::"):
            assert main(["top", url, "--json"]) == 2
            shown = capsys.readouterr()
            assert shown.err.startswith(f"acmserve: error: no server answers at {url} (")
            assert (shown.out, shown.err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--interval", "0"], "'0' is not a number of seconds"),
        (["--interval", "nan"], "'nan' is not a number of seconds"),
        (["--limit", "0"], "'0' is not a number from 1 to 1000"),
        (["--sort", "name"], "invalid choice: 'name'"),
    ],
)
def test_wrong_flags_are_named(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["top", *flags])
    assert said in capsys.readouterr().err


def test_a_file_is_no_screen(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", url]) == 2
    assert "use --once or --json" in capsys.readouterr().err
    for flags in (["--api-key", "clé"], ["--api-key", "secret\n"], ["--cache-salt", "a\x1b"]):
        assert main(["top", url, *flags]) == 2
        shown = capsys.readouterr().err
        assert f"{flags[0]} has characters that no HTTP header can carry" in shown
        assert "secret" not in shown
