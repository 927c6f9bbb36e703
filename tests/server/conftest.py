"""Clients of the two servers that the HTTP tests share, and a third server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.support.tenants.keyed_server import KeyedServer, start_keyed_server


@pytest.fixture(scope="session")
def client(server: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server}/v1", api_key="unused", max_retries=0) as openai_client:
        yield openai_client


@pytest.fixture(scope="session")
def scripted_client(scripted_server: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{scripted_server}/v1", api_key="unused", max_retries=0) as openai_client:
        yield openai_client


@pytest.fixture(scope="session")
def keyed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedServer]:
    """The last test of `launch/test_start_and_end.py` ends it."""
    with start_keyed_server(tmp_path_factory.mktemp("keyed")) as started:
        yield started
