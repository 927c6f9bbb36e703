"""Clients of the two servers that the HTTP tests share, and the one with the scripted model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support.server.own_suite import OWN_SUITE
from tests.support.server.running_server import running_server
from tests.support.server.scripted_server import FLAGS, write_model


@pytest.fixture(scope="session")
def scripted_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the scripted server writes: `data`, `server.log`, `server.pid`."""
    return tmp_path_factory.mktemp("scripted")


@pytest.fixture(scope="session")
def scripted_server(scripted_folder: Path) -> Iterator[str]:
    """Base URL of a server whose model says what the test wrote down (see `benchmarks/models/scripted_model.py`)."""
    suite = scripted_folder / "mine.json"
    suite.write_text(json.dumps(OWN_SUITE), encoding="utf-8")
    flags = [
        *FLAGS,
        "--suite",
        str(suite),
        "--enable-scale-out",
        "--trust-request-chat-template",
        "--data-dir",
        str(scripted_folder / "data"),
    ]
    with running_server(
        write_model(scripted_folder / "model"), scripted_folder / "server.log", flags, tiny=True
    ) as url:
        yield url


@pytest.fixture(scope="session")
def client(server: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server}/v1", api_key="unused", max_retries=0) as openai_client:
        yield openai_client


@pytest.fixture(scope="session")
def scripted_client(scripted_server: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{scripted_server}/v1", api_key="unused", max_retries=0) as openai_client:
        yield openai_client
