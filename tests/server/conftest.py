"""Clients of the two servers that the HTTP tests share, and the one with the scripted model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.support.server.running_server import running_server
from tests.support.server.scripted_server import FLAGS, write_model


@pytest.fixture(scope="session")
def scripted_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of a server whose model says what the test wrote down (see `benchmarks/models/scripted_model.py`)."""
    folder = tmp_path_factory.mktemp("scripted")
    flags = [*FLAGS, "--data-dir", str(folder / "data")]
    with running_server(write_model(folder / "model"), folder / "server.log", flags, tiny=True) as url:
        yield url


@pytest.fixture(scope="session")
def client(server: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server}/v1", api_key="unused", max_retries=0) as openai_client:
        yield openai_client


@pytest.fixture(scope="session")
def scripted_client(scripted_server: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{scripted_server}/v1", api_key="unused", max_retries=0) as openai_client:
        yield openai_client
