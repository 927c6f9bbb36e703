"""Clients of the two servers that the HTTP tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI


@pytest.fixture(scope="session")
def client(server: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server}/v1", api_key="unused", max_retries=0) as openai_client:
        yield openai_client


@pytest.fixture(scope="session")
def scripted_client(scripted_server: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{scripted_server}/v1", api_key="unused", max_retries=0) as openai_client:
        yield openai_client
