"""What llama.cpp's server is asked, and what is read from its answer. A script stands for its binary."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from acmserve.bench.harness.llama_cpp import (
    BEST,
    CACHE_REUSE,
    NO_STORE,
    OWN_DEFAULTS,
    WAYS,
    LlamaProcess,
    LlamaWay,
    read_version,
    server_command,
)
from acmserve.errors import AcmError

# Answers as the server does: it has kept all but the last two tokens. A prompt of one token is too long for it.
SERVER = f"""#!{sys.executable}
import json, sys
if "--version" in sys.argv:
    print("version: 1 (abc)", file=sys.stderr)
    sys.exit()
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, {{"status": "ok"}})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = asked["prompt"]
        told = [asked.get(name) for name in ("cache_prompt", "n_cache_reuse", "id_slot")]
        wanted = [True, {CACHE_REUSE}, 0] if "--cache-reuse" in sys.argv else [None] * 3
        is_right = self.path == "/completion" and told == wanted and asked["n_predict"] == 1 and len(prompt) > 1
        told = {{"tokens": [prompt[-1] + 1], "timings": {{"cache_n": len(prompt) - 2, "prompt_n": 2}}}}
        self.answer(200, told) if is_right else self.answer(400, {{"error": "no"}})

    def answer(self, status, told):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(told).encode())

    def log_message(self, *told):
        pass

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def server(tmp_path: Path) -> Path:
    path = tmp_path / "llama-server"
    path.write_text(SERVER)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way.name))
def test_a_prompt_is_answered_on_top_of_the_one_before(way: LlamaWay, server: Path, tmp_path: Path) -> None:
    with LlamaProcess(server, tmp_path / "model.gguf", window=64, num_threads=1, way=way) as llama:
        llama.wait_ready()
        found = llama.ask((5, 6, 7))
        assert (found.token_ids, found.num_kept, found.num_computed) == ((8,), 1, 2)
        assert found.first_token_s > 0
        with pytest.raises(AcmError, match=r"did not answer a prompt of 1 tokens.*400"):
            llama.ask((5,))


def test_every_slot_has_the_whole_window() -> None:
    command = server_command(Path("s"), Path("m.gguf"), 99, BEST, window=8192, num_slots=3, num_threads=2)
    told = dict(pairwise(command))
    assert (told["-c"], told["-np"], told["-t"], told["--port"]) == ("24576", "3", "2", "99")
    assert told["--cache-reuse"] == str(CACHE_REUSE)


def test_only_the_control_has_no_store() -> None:
    """At its defaults the server has a store, and nobody says so."""
    stores = [dict(pairwise(way.flags)).get("--cache-ram") for way in (BEST, OWN_DEFAULTS, NO_STORE)]
    assert stores == ["1024", None, "0"]
    assert OWN_DEFAULTS.flags == ()
    assert OWN_DEFAULTS.fields(3) == {}
    assert BEST.fields(3)["id_slot"] == 3


def test_a_binary_says_its_version_or_it_is_an_error(server: Path, tmp_path: Path) -> None:
    assert read_version(server) == "version: 1 (abc)"
    with pytest.raises(AcmError, match="does not tell its version"):
        read_version(tmp_path / "nothing")
