"""A proxy between a client and the server that writes down every request and its answer, and changes neither.

    client --> Recorder --> server        .exchanges: what was said, in the order of the answers' ends

A client gets the proxy's address as its base URL. Recordings hold the client's own words, so they stay in `build/`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx

from tests.support import http

_OF_ONE_HOP = {"connection", "content-length", "transfer-encoding", "host", "keep-alive", "accept-encoding"}


@dataclass(frozen=True)
class Exchange:
    """One request and its answer. Header names are lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    status: int
    answer_headers: dict[str, str]
    answer: str

    def events(self) -> list[dict[str, Any]]:
        """The JSON objects of the answer: one, or those of a stream."""
        if self.answer.startswith("{"):
            return [json.loads(self.answer)]
        lines = (line.removeprefix("data: ") for line in self.answer.splitlines() if line.startswith("data: {"))
        return [json.loads(line) for line in lines]


@dataclass
class Recorder:
    """What was said so far. `url` is the address for the client, without `/v1`."""

    url: str
    target: str
    log: Path
    added: Mapping[str, str] = field(default_factory=dict)
    """Headers that the server gets beside the client's own: none but in a control."""
    exchanges: list[Exchange] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, exchange: Exchange) -> None:
        """Write one down."""
        with self.lock:
            self.exchanges.append(exchange)
            with self.log.open("a") as stream:
                stream.write(json.dumps(exchange.__dict__) + "\n")


@contextmanager
def recorder(target: str, log: Path, added: Mapping[str, str] | None = None) -> Iterator[Recorder]:
    """Listens on a free port of this machine until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    recording = Recorder(f"http://127.0.0.1:{server.server_address[1]}", target, log, added or {})
    _Handler.of[server.server_address[1]] = recording
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield recording
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        del _Handler.of[server.server_address[1]]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    of: ClassVar[dict[int, Recorder]] = {}

    def _forward(self) -> None:
        recording = self.of[self.server.server_address[1]]  # type: ignore[index]
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        sent = {name: value for name, value in headers.items() if name not in _OF_ONE_HOP} | recording.added
        with (
            httpx.Client(timeout=http.SECONDS, trust_env=False, verify=False) as client,
            client.stream(self.command, recording.target + self.path, content=raw, headers=sent) as answer,
        ):
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name.lower() not in _OF_ONE_HOP:
                    self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            parts = []
            for part in answer.iter_raw():
                parts.append(part)
                self._write(part)
            text = b"".join(parts).decode()
            recording.add(
                Exchange(
                    self.command,
                    self.path,
                    headers,
                    json.loads(raw) if raw[:1] == b"{" else {},
                    answer.status_code,
                    {name.lower(): value for name, value in answer.headers.items()},
                    text,
                )
            )
            self._write(b"", is_last=True)

    def _write(self, part: bytes, *, is_last: bool = False) -> None:
        """Pass a part on. Some clients close the connection with the last event of a stream."""
        if self.command == "HEAD" or not (part or is_last):
            return
        try:
            self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            self.wfile.flush()
        except ConnectionError:
            self.close_connection = True

    def handle(self) -> None:
        with suppress(ConnectionError):
            super().handle()

    do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = _forward  # noqa: N815 - http.server looks for these

    def log_message(self, *args: Any) -> None:
        """The recording is the log."""
