"""Breaking any one seam turns the plugin off, and names it."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from acmserve.engine.plugin.entry_point import register
from acmserve.engine.vllm.seams import SEAMS
from acmserve.seams import Seam, broken_seams
from tests.support.broken_seam import break_seam


def test_the_installed_engine_has_every_seam() -> None:
    assert broken_seams(SEAMS) == []


def test_no_seam_stands_twice() -> None:
    assert len({seam.place for seam in SEAMS}) == len(SEAMS) > 60


@pytest.mark.parametrize("seam", SEAMS, ids=[seam.name for seam in SEAMS])
def test_breaking_one_seam_turns_the_plugin_off_and_names_it(
    seam: Seam, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    registry: dict[str, Any] = {}
    monkeypatch.setattr(KVConnectorFactory, "_registry", registry)
    with monkeypatch.context() as patch:
        break_seam(seam, patch)
        with caplog.at_level(logging.ERROR, logger="acmserve"):
            register()
    assert "acmserve is off" in caplog.text
    assert re.search(rf"\b{re.escape(seam.name)} (is gone|has the parameters)", caplog.text)
    assert registry == {}


def test_a_module_that_is_gone_is_named() -> None:
    (problem,) = broken_seams([Seam("vllm.v1.no_such_module:Thing.name")])
    assert problem.startswith("Thing.name is gone")
