"""The engine whose background chunks are stepped by hand: one for all files that look at them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.conftest import scope_of

if TYPE_CHECKING:
    from tests.support.engine.engine import Engine

SCOPE = "precomputing_engine"


@pytest.fixture(scope="session")
def precomputing_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One for all files of its scope. See `precomputing`."""
    from tests.support.precomputing import precomputing

    with precomputing(tmp_path_factory.mktemp("models")) as started:
        yield started


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """It ends in front of other tests, with xdist and without: their engines live in this process, too."""
    if scope_of(item.nodeid) == SCOPE and nextitem is not None and scope_of(nextitem.nodeid) != SCOPE:
        for fixture in item.session._fixturemanager.getfixturedefs(SCOPE, item) or ():
            fixture.finish(item._request)  # type: ignore[attr-defined]
