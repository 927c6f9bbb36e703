"""The identity benchmark, small: its gate lets a found session pass and a lost one not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from acmserve.bench.micro import bench_identity as identity
from acmserve.bench.micro.bench_identity import bench_finding_a_session as test_finding_a_session

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
