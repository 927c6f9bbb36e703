"""Engines that the whole suite shares: each takes tens of seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from acmserve.models import smollm2
from tests.engine.engine import Engine, start_engine

# No deadlines: what else the machine does is no property of the code.
hypothesis.settings.register_profile("acmserve", deadline=None)
hypothesis.settings.load_profile("acmserve")

_ENGINES = ("server", "engine")
"""Folders whose tests share servers or engines."""

SMOLLM2_SETTINGS: dict[str, Any] = {"max_model_len": 8192, "kv_cache_memory_bytes": 2**30}


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
