"""The identity benchmark, small: its gate lets a found session pass and a lost one not. Its record has its bar."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from acmserve.bench.micro import bench_identity as identity
from acmserve.bench.micro.bench_identity import bench_finding_a_session as test_finding_a_session
from tests.support.docs.figures import read_result

__all__ = ["test_finding_a_session"]


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "NUM_TOKENS", 2_000)
        yield


def test_a_session_of_which_the_client_has_nothing_is_not_found() -> None:
    client = identity.ResendingClient(changes=False)
    client.fill()
    assert client.ask(client.resend()) == identity.SESSION
    del client.agent.messages[2:]
    assert client.ask(client.resend()) is None


def slow(rows: list[dict[str, Any]]) -> list[str]:
    return [row["name"] for row in rows if row["median_ms"] > row["limit_ms"]]


def test_recorded_medians_are_held_against_a_millisecond() -> None:
    """The control is a microsecond more than that."""
    rows = read_result("identity")["rows"]
    names = [row["name"] for row in rows]
    assert names == ["appended to, 32,000 tokens", "changed in its first message, 32,000 tokens"]
    assert {row["limit_ms"] for row in rows} == {identity.LIMIT_MS} == {1.0}
    assert slow(rows) == []
    assert slow([row | {"median_ms": 1.0} for row in rows]) == []
    assert slow([row | {"median_ms": 1.001} for row in rows]) == names
