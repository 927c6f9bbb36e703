"""What `acmserve serve` refuses while vLLM is not imported: one line, exit code 2, and no engine was started."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from acmserve.context.storage import shared_folder
from acmserve.context.storage.sqlite import Archive
from acmserve.errors import AcmError, InvalidRequest
from acmserve.plan.calibration import FORMAT, VERSION
from acmserve.server.app.early_checks import check_command_line, check_model_folder, check_port, check_settings
from acmserve.server.app.flags import build_parser
from acmserve.server.options.config import ContextConfig

CODE = """
import contextlib, io, json, sys, time
class Light:
    def find_spec(self, name, *places):
        if name == "torch":
            raise RuntimeError("a start went on, and imports torch")
sys.meta_path.insert(0, Light())
from acmserve.cli import main
for line in json.load(sys.stdin):
    said, began_at = io.StringIO(), time.process_time()
    with contextlib.redirect_stderr(said):
        code = main(["serve", *line.split()])
    heavy = [name for name in ("vllm", "torch", "transformers") if name in sys.modules]
    print(json.dumps([code, said.getvalue(), heavy, time.process_time() - began_at]))
"""
"""Starts one server after the other in a process of its own, and says how each ended. None gets as far as torch."""
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 2048,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 256,
}
SETTING = re.compile(r"^VLLM_|_PROXY$|_OFFLINE$", re.IGNORECASE)
"""Variables that change what is refused. Other tests set some of them in this process."""
DAMAGED = b"SQLite format 3\x00" + b"\xff" * 5000


@dataclass(frozen=True)
class Ended:
    """How a start ended: exit code, stderr, which heavy libraries it had imported, and its processor time."""

    code: int
    said: str
    heavy: list[str]
    seconds: float


def check(*argv: str) -> None:
    ours, rest = build_parser().parse_known_args(argv)
    check_command_line(ours, rest)


@pytest.fixture(scope="module")
def taken() -> Iterator[int]:
    """A port of this machine that somebody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory, taken: int) -> dict[str, object]:
    """A taken port, a folder with a damaged file of sessions, and a folder with a small model's configuration."""
    folder, llama = tmp_path_factory.mktemp("damaged"), tmp_path_factory.mktemp("llama")
    (folder / "sessions.sqlite3").write_bytes(DAMAGED)
    (folder / "file").touch()
    (llama / "config.json").write_text(json.dumps(LLAMA))
    return {"port": taken, "folder": folder, "llama": llama}


@pytest.fixture(scope="module")
def ended(names: dict[str, object]) -> dict[str, Ended]:
    """How each start of `FAULTS` ends, on a machine without a way to a hub."""
    lines = [line.format(**names) for line, _ in FAULTS.values()]
    environ = {name: value for name, value in os.environ.items() if not SETTING.search(name)}
    environ["HF_ENDPOINT"] = "https://hub.invalid"
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, input=json.dumps(lines), capture_output=True, text=True, check=True, env=environ)
    return {fault: Ended(*json.loads(line)) for fault, line in zip(FAULTS, done.stdout.splitlines(), strict=True)}


FAULTS: dict[str, tuple[str, str]] = {
    "taken port": ("{llama} --port {port}", "port {port} is in use by another process; --port names another one"),
    "no port": ("{llama} --port abc", "--port 'abc' is no port; ports go from 1 to 65535"),
    "missing folder": ("{folder}/gone --port=0", "no model at {folder}/gone: there is no such folder. Name a folder"),
    "no config": ("{folder} --port=0", "no model at {folder}: the folder has no config.json. Name a folder"),
    "not on the hub": ("no/model --port=0", "no model 'no/model': there is no such folder, it is not in the cache at"),
    "budget": ("{llama} --port=0 --budget lots", "--budget.max_tokens: 'lots' is no number of tokens. Give tokens"),
    "fidelity": ("{llama} --port=0 --fidelity exat", "--fidelity: invalid choice: 'exat' (choose from 'exact'"),
    "dtype": ("{llama} --port=0 --dtype floot16", "'floot16' is no type of numbers; choose 'auto' or"),
    "our flag": ("{llama} --port=0 --fidelty exact", "unknown flag --fidelty. Did you mean --fidelity?"),
    "their flag": (
        "{llama} --port=0 --max_model_length=9",
        "flag --max-model-length. Did you mean --max-model-len?",
    ),
    "damaged sessions": ("{llama} --port=0 --data-dir {folder}", "Restore it from a backup, or move it away"),
    "no data folder": ("{llama} --port=0 --data-dir {folder}/file/d", "Choose a folder that can be written"),
    "session ids": ("{llama} --port=0 --session-from sesion_id", "--session-from: has no place 'sesion_id'. Name some"),
    "policy": ("{llama} --port=0 --eviction-policy my:Policy", "'my:Policy'"),
    "window": (
        "{llama} --port=0 --max-model-len 4k",
        "--max-model-len 4000 is more than the 2048 tokens that",
    ),
    "KV": ("{llama} --port=0 --kv-cache-memory-bytes 99k", "cannot hold one request of 2048 tokens"),
    "configuration": ("{llama} --config {folder}/gone.yaml", "--config {folder}/gone.yaml: there is no such file"),
    "calibration": ("{llama} --port=0 --calibration {folder}/gone.json", "gone.json cannot be read: No such file"),
    "address": ("{llama} --port=0 --summary-url there:8001", "--summary-url: 'there:8001' does not begin with http://"),
    "embedder": (
        "{llama} --port=0 --embedder http://",
        "Give http://HOST:PORT, http://HOST:PORT#MODEL, or model2vec:F",
    ),
    "calls": ("{llama} --port=0 --max-tool-calls 101", "--max-tool-calls: must be from 1 to 100, not 101. Give a"),
    "socket": ("{llama} --uds {folder}/file", "--uds {folder}/file is there already; remove it where no server"),
}
"""What is wrong with a start -> the command line, and what the one line on stderr says of it."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_and_nothing_heavy_is_imported(
    fault: str, ended: dict[str, Ended], names: dict[str, object]
) -> None:
    """The processor time is that of our own modules, a tenth of what importing vLLM takes."""
    found = ended[fault]
    assert (found.code, found.heavy) == (2, [])
    assert found.said.startswith("acmserve: error: ")
    assert found.said.count("\n") == 1
    assert FAULTS[fault][1].format(**names) in found.said
    assert found.seconds < 3
    assert (Path(str(names["folder"])) / "sessions.sqlite3").read_bytes() == DAMAGED


def test_the_process_ends_with_the_code_and_the_line(names: dict[str, object]) -> None:
    command = [sys.executable, "-m", "acmserve", "serve", str(names["llama"]), "--port", str(names["port"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"acmserve: error: port {names['port']} is in use by another process")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "flags",
    [
        ["--precompute", "always"],
        ["--observations", "sometimes"],
        ["--embedder", "ftp://there"],
        ["--embedder", "http://#model"],
        ["--embedder", "http://there?key=k#model"],
        ["--summary-url", "there:8001"],
        ["--map-url", "http://there:port"],
        ["--max-tool-calls", "101"],
        ["--eviction-policy", "nothing:Here"],
        ["--session-from", "sesion_id"],
        ["--budget", '{"max_tokens": "4k", "low_watermark": "5k"}'],
        ["--budget", '{"policy": "none such"}'],
        ["--session-hours", "-1"],
    ],
)
def test_every_flag_of_ours_is_read(flags: list[str]) -> None:
    check("smollm2", "--port", "0")
    with pytest.raises(InvalidRequest, match=flags[0].removeprefix("--").replace("-", "[-_]")):
        check("smollm2", "--port", "0", *flags)


def test_a_calibration_of_another_model_is_refused(tmp_path: Path, names: dict[str, object]) -> None:
    shape = {"architecture": "LlamaForCausalLM", "num_layers": 2, "hidden_size": 64, "vocab_size": 9}
    head = {"format": FORMAT, "version": VERSION, "model": "small", "level": "exact", "thresholds": None}
    (tmp_path / "c.json").write_text(json.dumps(head | {"shape": shape}), encoding="utf-8")
    check(str(names["llama"]), "--port", "0", "--max-model-len", "16", "--kv-cache-memory-bytes", "1g")
    with pytest.raises(AcmError, match="measured on small, which is another model: hidden_size is 256, and was 64"):
        check(str(names["llama"]), "--port", "0", "--calibration", str(tmp_path / "c.json"))


@pytest.mark.parametrize("budget", ["50%", "80k", '{"max_tokens": "50%", "low_watermark": 60000, "policy": "recency"}'])
def test_a_budget_that_some_window_can_hold_is_left_to_the_start(budget: str) -> None:
    check("smollm2", "--port", "0", "--budget", budget)


@pytest.mark.parametrize(("model", "said"), [("gone", "there is no such folder"), ("empty", "has no config.json")])
def test_a_folder_without_a_model_is_one_line(tmp_path: Path, model: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(AcmError, match=said):
        check_model_folder(str(tmp_path / model))
    with pytest.raises(AcmError, match=said):
        check("--port", "0", "--model", str(tmp_path / model))
    check_model_folder("owner/name")


def test_a_port_is_looked_at_where_this_server_would_listen(taken: int) -> None:
    with pytest.raises(AcmError, match="in use"):
        check_port(None, taken)
    with pytest.raises(AcmError, match="in use"):
        check("smollm2", "--host", "127.0.0.1", f"--port={taken}")
    for elsewhere in (["--uds", "/run/acm.sock"], ["--headless"]):
        check("smollm2", "--port", f"{taken}", *elsewhere)
    check_port("127.0.0.1", 0)
    with pytest.raises(AcmError, match="70000 is no port"):
        check_port(None, 70_000)
    with pytest.raises(AcmError, match=r"cannot listen on 203\.0\.113\.7, port 81"):
        check_port("203.0.113.7", 81)


@pytest.mark.parametrize("content", [b"no database", DAMAGED])
def test_a_damaged_file_of_sessions_is_named_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sessions.sqlite3").write_bytes(content)
    with pytest.raises(AcmError, match=r"sessions\.sqlite3 is damaged.*Restore it from a backup, or move it away"):
        check_settings(ContextConfig(data_dir=str(tmp_path)))
    assert (tmp_path / "sessions.sqlite3").read_bytes() == content


def test_the_file_of_one_server_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    monkeypatch.setattr(shared_folder, "Archive", lambda folder: opened.append(folder) or Archive(folder))
    check_settings(ContextConfig(data_dir=str(tmp_path)))
    assert opened == [tmp_path]


def test_a_second_server_on_the_folder_of_another_is_one_line(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    try:
        with pytest.raises(AcmError, match="is in use by another acmserve"):
            check_settings(ContextConfig(data_dir=str(tmp_path)))
    finally:
        archive.close()
    check_settings(ContextConfig(data_dir=str(tmp_path)))
