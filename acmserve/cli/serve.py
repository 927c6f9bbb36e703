"""`acmserve serve`: the server. Its flags are read by the server and by vLLM."""

from __future__ import annotations

from acmserve.cli.command import Command


def _run(arguments: list[str]) -> int:
    from acmserve.server.app.serve import main

    return main(arguments)


SERVE = Command("start the OpenAI-compatible server with context edits on", _run)
