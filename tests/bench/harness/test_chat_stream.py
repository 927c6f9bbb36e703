"""A streamed request waits as long as a slow machine needs for its first byte."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from acmserve.bench.harness.chat_stream import stream_chat

OPENINGS, TOKENS, TOKENS_A_SECOND = 16, 6_000, 50


def test_the_last_of_many_long_openings_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen at once on a slow CPU: the last one waits for all tokens in front of it."""
    given: list[float] = []

    def stream(*_: Any, timeout: float, **__: Any) -> Any:
        given.append(timeout)
        raise httpx.ConnectError("nobody is there")

    monkeypatch.setattr(httpx, "stream", stream)
    with pytest.raises(httpx.ConnectError):
        list(stream_chat("http://x", {}))
    assert given[0] > OPENINGS * TOKENS / TOKENS_A_SECOND
