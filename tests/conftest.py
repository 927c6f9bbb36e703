"""Engines that the whole suite shares: each takes tens of seconds to start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from acmserve.models import smollm2
from tests.support.engine.engine import Engine, start_engine

# No deadlines: what else the machine does is no property of the code.
hypothesis.settings.register_profile("acmserve", deadline=None)
hypothesis.settings.load_profile("acmserve")

_ENGINES = ("server", "engine")
"""Folders whose tests share servers or engines."""

SMOLLM2_SETTINGS: dict[str, Any] = {"max_model_len": 8192, "kv_cache_memory_bytes": 2**30}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse tests that share an id: of these xdist runs one, and nobody hears of the others.

    pytest 9.2 makes an id of a function and its parameters, and schemathesis has one function for all operations; here
    each gets its own.
    """
    for item in items:
        operation = getattr(item, "operation_label", None)
        if operation is not None:
            item._id = item.id.with_params(operation)
    shared = [name for name, num in Counter(item.nodeid for item in items).items() if num > 1]
    if shared:
        raise pytest.UsageError(f"{len(shared)} ids are those of several tests: {shared[:3]}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several processes: a folder that shares engines stays together, else a file does."""
    from xdist.scheduler import LoadScopeScheduling

    class ByEngine(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return next((folder for folder in _ENGINES if path.startswith(f"tests/{folder}/")), path)

    return ByEngine(config, log)


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The prepared model; the first use downloads and converts it."""
    return smollm2.prepare()


@pytest.fixture(scope="session")
def smollm2_engine(smollm2_folder: Path) -> Iterator[Engine]:
    """SmolLM2 with the plugin, in a process of its own."""
    with start_engine(smollm2_folder, plugin={}, own_process=True, **SMOLLM2_SETTINGS) as engine:
        yield engine


@pytest.fixture(scope="session")
def stock_engine(smollm2_folder: Path) -> Iterator[Engine]:
    """The same model and settings without the plugin."""
    with start_engine(smollm2_folder, plugin=None, own_process=True, **SMOLLM2_SETTINGS) as engine:
        yield engine
