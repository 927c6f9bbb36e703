"""The blocks of the pages that everybody reads first, against the server that they start: the bundled model's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.docs.pages import FIRST_PAGES
from tests.support.docs.runner import PageRunner, run_page


@pytest.fixture(scope="module")
def host(request: pytest.FixtureRequest) -> str:
    """The server of the bundled model. `ACMSERVE_DOCS_SERVER` names one just started."""
    given = os.environ.get("ACMSERVE_DOCS_SERVER")
    return given or str(request.getfixturevalue("server")).removeprefix("http://")


@pytest.mark.parametrize("name", FIRST_PAGES)
def test_blocks_print_what_the_page_shows(name: str, host: str, tmp_path: Path) -> None:
    run_page(name, PageRunner(tmp_path, host))
