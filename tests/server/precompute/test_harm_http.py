"""What idle time tells of the harm of moved KV, on real engines."""

from __future__ import annotations

from typing import Any

from tests.server.precompute.test_http import Chat
from tests.support import http
from tests.support.server.scripts import log_lines

FOLD = {"edits": [{"op": "fold", "messages": {"start": 1, "end": 2}}]}
KEYS = ("river", "stone", "cloud", "lamp", "chair", "paper", "glass", "metal")
VALUES = ("red", "blue", "copper", "silver", "Paris", "Lima", "oak", "birch")


def harm_of(chat: Chat) -> dict[str, dict[str, Any]]:
    """What the session's totals tell, by fidelity."""
    return {told["fidelity"]: told for told in http.get(chat.url("/totals")).json()["harm"]}


def test_a_move_that_is_exact_does_no_harm(scripted_server: str) -> None:
    """One layer: a token's KV does not know what stood in front of it."""
    chat = Chat(scripted_server, "heal")
    chat.ask(f"Read this: {log_lines(40, first=7000)}", "Read.", fidelity="reuse")
    chat.ask(f"And this: {log_lines(40, first=8000)}", "Read, too.", fidelity="reuse")
    assert harm_of(chat) == {}
    http.post(chat.url("/edits"), json=FOLD).raise_for_status()
    chat.ask("What did you read?", "Logs, and nothing that is worth a second look.", fidelity="reuse")
    assert chat.receipt["moved_tokens"] > 700
    chat.wait_until_idle()
    told = harm_of(chat)["reuse"]
    print(told)
    assert abs(told["nats"]) < 1e-4
    assert (told["answers"], told["upper"]) == (1, None)
    assert told["tokens"] >= 8
    chat.ask("Which?", fidelity="reuse")
    assert chat.receipt["moved_tokens"] == 0
    assert chat.receipt["precomputed_tokens"] > 700
    assert chat.receipt["computed_tokens"] <= 48, chat.receipt
