"""`acmserve export` takes files, stdin and a server. Rows, one line of numbers and an exit code come out."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from acmserve.cli import main
from tests.support.training.sessions import Session, random_session

KEY = "secret"


@pytest.fixture
def session() -> Session:
    return random_session(3)


@pytest.fixture
def record(session: Session, tmp_path: Path) -> Path:
    path = tmp_path / "rollout.jsonl"
    path.write_text("\n".join(session.record()) + "\n", encoding="utf-8")
    return path


def rows_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def check_rows(session: Session, rows: list[dict[str, Any]]) -> None:
    trained = [i for row in rows for i, m in zip(row["input_ids"], row["loss_mask"], strict=True) if m]
    assert sorted(trained) == sorted(token for one in session.completions for token in one.token_ids)


def test_a_file_becomes_rows_on_stdout(session: Session, record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(record)]) == 0
    shown = capsys.readouterr()
    check_rows(session, rows_of(shown.out))
    num_tokens = sum(len(one.token_ids) for one in session.completions)
    assert shown.err == f"1 sessions, {num_tokens} sampled tokens, {len(rows_of(shown.out))} samples\n"


def test_stdin(session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(session.record())))
    assert main(["export", "-", "--algorithm", "paper"]) == 0
    check_rows(session, rows_of(capsys.readouterr().out))


@pytest.fixture
def url(session: Session) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers.get("Authorization") == f"Bearer {KEY}"
            self.send_response(200 if allowed else 401)
            self.end_headers()
            self.wfile.write("\n".join(session.record()).encode() if allowed else b"no key")

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/rollout"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_address_of_a_server(session: Session, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", url, "--api-key", KEY]) == 0
    check_rows(session, rows_of(capsys.readouterr().out))
    assert main(["export", url]) == 2
    assert capsys.readouterr().err == f"acmserve: error: {url} answered 401: no key\n"


def test_rewards_reach_the_rows(record: Path, tmp_path: Path) -> None:
    rewards, output = tmp_path / "rewards.jsonl", tmp_path / "train.jsonl"
    rewards.write_text('{"session_id": "session-3", "correct": true, "group": "q"}\n', encoding="utf-8")
    command = ["export", str(record), "--rewards", str(rewards), "--output", str(output)]
    assert main(command) == 0
    assert {(row["reward"], row["advantage"]) for row in rows_of(output.read_text("utf-8"))} == {(1.0, 0.0)}
    assert main([*command, "--max-tokens", "1", "--format", "verl"]) == 0
    assert {row["reward_score"] for row in rows_of(output.read_text("utf-8"))} == {-1.0}
    assert main([*command, "--max-tools", "0", "--min-reward", "2"]) == 0
    assert output.read_text("utf-8") == ""
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []


def test_a_failed_export_leaves_the_old_file(record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "train.jsonl"
    output.write_text("old\n", encoding="utf-8")
    text = record.read_text("utf-8").replace('"logprobs": [', '"logprobs": null, "was": [')
    record.write_text(text, encoding="utf-8")
    assert main(["export", str(record), "--format", "trl", "--output", str(output)]) == 2
    assert "TRL needs them" in capsys.readouterr().err
    assert output.read_text("utf-8") == "old\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rollout.jsonl", "train.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.jsonl"], "missing.jsonl cannot be read: No such file or directory"),
        (["{record}", "{record}"], "RECORD: session 'session-3' is given twice"),
        (["{record}", "--min-reward", "1"], "--rewards: is missing"),
        (["{record}", "--rewards", "{record}"], "rollout.jsonl, line 1, field kind: is unknown"),
        (["{record}", "--output", "no/such/folder.jsonl"], "no/such/folder.jsonl cannot be written"),
        (["{record}", "--output", "."], ". cannot be written: it is a folder"),
        (["{record}", "--output="], ". cannot be written: it is a folder"),
        (["{cut}"], "cut.jsonl, line 2: is no JSON"),
        (["{binary}"], "binary.jsonl is no UTF-8 text"),
        (["http://127.0.0.1:1/x"], "http://127.0.0.1:1/x cannot be read"),
    ],
)
def test_what_is_wrong_is_one_line_on_stderr(
    arguments: list[str], said: str, record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut, binary = record.with_name("cut.jsonl"), record.with_name("binary.jsonl")
    cut.write_text(record.read_text("utf-8")[:200], encoding="utf-8")
    binary.write_bytes(b"\xff\xfe")
    paths = {"record": record, "cut": cut, "binary": binary}
    assert main(["export", *(argument.format(**paths) for argument in arguments)]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.err.startswith("acmserve: error: ")
    assert len(shown.err.splitlines()) == 1


def test_help_teaches_by_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    shown = capsys.readouterr().out
    for word in (
        "jsonl",
        "trl",
        "verl",
        "sft",
        "paper",
        "prefix",
        "--rewards",
        '"correct": true',
        "  acmserve export ",
    ):
        assert word in shown


def test_an_export_imports_neither_torch_nor_vllm(record: Path) -> None:
    code = (
        "import sys\n"
        "from acmserve.cli import main\n"
        f"main(['export', {str(record)!r}])\n"
        "print(sorted({'vllm', 'torch', 'transformers', 'httpx'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
