"""A small real HTTP server that speaks as much of OpenAI's protocol as the tests need."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Answer = tuple[int, Any]


class ToyModel:
    """The model `toy` behind chat completions: `reply` answers a body. `most` are answered, and then none."""

    def __init__(self, reply: Callable[[Any], Answer], most: int = 10**6) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._reply, self._most = reply, most

    def __call__(self, path: str, body: Any, key: str | None) -> Answer:
        if path == "/v1/models":
            return 200, {"data": [{"id": "toy"}]}
        if path != "/v1/chat/completions":
            return 404, {}
        if len(self.bodies) >= self._most:
            return 500, "the model is gone"
        self.bodies.append(body)
        return self._reply(body)


def says(content: str, usage: dict[str, Any]) -> Answer:
    """A completion of chat."""
    return 200, {"choices": [{"message": {"role": "assistant", "content": content}}], "usage": usage}


@contextmanager
def openai_server(answer: Callable[[str, Any, str | None], Answer]) -> Iterator[str]:
    """Serve `answer(path, body, authorization) -> (status, body)` and yield the base URL. A text goes out as it is."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def do_GET(self) -> None:
            self._answer(None)

        def _answer(self, body: Any) -> None:
            status, answered = answer(self.path, body, self.headers.get("Authorization"))
            data = (answered if isinstance(answered, str) else json.dumps(answered)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
