"""What llama.cpp's server is asked, and what is read from its answer; a script stands for its binary."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from acmserve.bench.harness.llama_cpp import CACHE_REUSE, LlamaProcess, server_command
from acmserve.errors import AcmError

# Answers as the server does: it has kept all but the last two tokens. A prompt of one token is too long for it.
SERVER = f"""#!{sys.executable}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, {{"status": "ok"}})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = asked["prompt"]
        wanted = [asked["cache_prompt"], asked["n_cache_reuse"], asked["id_slot"], asked["n_predict"]]
        is_right = self.path == "/completion" and wanted == [True, {CACHE_REUSE}, 0, 1] and len(prompt) > 1
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


def test_a_prompt_is_answered_on_top_of_the_one_before(tmp_path: Path) -> None:
    server = tmp_path / "llama-server"
    server.write_text(SERVER)
    server.chmod(0o755)
    with LlamaProcess(server, tmp_path / "model.gguf", window=64, num_threads=1) as llama:
        llama.wait_ready()
        found = llama.ask((5, 6, 7))
        assert (found.token_ids, found.num_kept, found.num_computed) == ((8,), 1, 2)
        assert found.first_token_s > 0
        with pytest.raises(AcmError, match=r"did not answer a prompt of 1 tokens.*400"):
            llama.ask((5,))


def test_every_slot_has_the_whole_window() -> None:
    command = server_command(Path("s"), Path("m.gguf"), 99, window=8192, num_slots=3, num_threads=2)
    told = dict(pairwise(command))
    assert (told["-c"], told["-np"], told["-t"], told["--port"]) == ("24576", "3", "2", "99")
    assert told["--cache-reuse"] == str(CACHE_REUSE)
