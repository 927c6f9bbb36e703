"""Breaking any one seam of the HTTP side leaves vLLM's routes alone, and names it."""

from __future__ import annotations

import logging
import re

import pytest

from acmserve.seams import Seam, broken_seams
from acmserve.server.app.endpoint import NoEndpoint, create
from acmserve.server.app.session_endpoint import SessionEndpoint
from acmserve.server.vllm.seams import SEAMS
from tests.support.broken_seam import break_seam


def test_the_installed_server_has_every_seam() -> None:
    assert broken_seams(SEAMS) == []
    assert isinstance(create(), SessionEndpoint)


@pytest.mark.parametrize("seam", SEAMS, ids=[seam.name for seam in SEAMS])
def test_breaking_one_seam_turns_the_server_off_and_names_it(
    seam: Seam, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        break_seam(seam, patch)
        endpoint = create()
    assert isinstance(endpoint, NoEndpoint)
    assert re.search(rf"acmserve is off: .*\b{re.escape(seam.name)} (is gone|has the parameters)", caplog.text)
