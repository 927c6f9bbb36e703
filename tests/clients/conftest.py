"""What the clients of the matrix share: our server, and a stock one where a request failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from tests.support.clients.errand_server import errand_server, stock_server, write_model
from tests.support.clients.installed import CLIENTS


@pytest.fixture(scope="session")
def errand_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model that does errands."""
    return write_model(tmp_path_factory.mktemp("errands") / "model")


@pytest.fixture(scope="session")
def errands(errand_model: Path) -> Iterator[str]:
    """Base URL of our server."""
    CLIENTS.mkdir(parents=True, exist_ok=True)
    with errand_server(errand_model, CLIENTS / "server.log") as url:
        yield url


@pytest.fixture(scope="session")
def start_stock(errand_model: Path) -> Iterator[Callable[[], str]]:
    """Starts a stock server when it is called first. Returns its base URL."""
    with ExitStack() as stack:
        yield cache(lambda: stack.enter_context(stock_server(errand_model)))
