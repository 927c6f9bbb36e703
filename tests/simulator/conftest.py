"""Fixtures of the simulator: one factory of schedulers for the whole session, with the plugin in place."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from acmserve.engine.plugin.entry_point import register
from tests.support.simulator.machine import Factory, write_model


@pytest.fixture(scope="session")
def factory(tmp_path_factory: pytest.TempPathFactory) -> Factory:
    """Schedulers of vLLM, stock or with acmserve, for any `Machine`."""
    register()
    return Factory(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """vLLM warns about block size and prefix cache for every scheduler that is built, and there are hundreds."""
    logger = logging.getLogger("vllm")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)
