"""Every block of README and docs runs, in order, against a real server, and prints what the page shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.docs.pages import Block, blocks_of, page_names, read_page
from tests.support.docs.runner import RUN, SHOWN, BlockFailure, PageRunner, compare

MAX_NOT_RUN = 5


def _has_blocks(name: str) -> bool:
    return any(block.language in RUN and not block.not_run for block in blocks_of(read_page(name)))


@pytest.fixture(scope="module")
def host(request: pytest.FixtureRequest) -> str:
    """The server of the bundled model. `ACMSERVE_DOCS_SERVER` names one just started."""
    given = os.environ.get("ACMSERVE_DOCS_SERVER")
    return given or str(request.getfixturevalue("server")).removeprefix("http://")


@pytest.mark.parametrize("name", [name for name in page_names() if _has_blocks(name)])
def test_blocks_print_what_the_page_shows(name: str, host: str, tmp_path: Path) -> None:
    runner, printed = PageRunner(tmp_path, host), None
    try:
        for block in blocks_of(read_page(name)):
            if block.language in RUN:
                printed = None if block.not_run else runner.run(block)
            elif block.language in SHOWN and printed is not None:
                compare(block, printed)
    finally:
        runner.close()


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    skipped = [(name, block) for name in page_names() for block in blocks_of(read_page(name)) if block.not_run]
    assert len(skipped) <= MAX_NOT_RUN
    assert all(len(block.not_run) > 20 for _, block in skipped)


def test_a_block_that_fails_is_found(tmp_path: Path) -> None:
    runner = PageRunner(tmp_path, "nowhere")
    try:
        assert runner.run(Block("bash", "A=1; echo $A\n", 1)) == "1\n"
        assert runner.run(Block("python", "print(1 + 1)\n", 2)) == "2\n"
        for block in (Block("python", "1 / 0\n", 3), Block("bash", "false\necho on\n", 4)):
            with pytest.raises(BlockFailure, match=f"line {block.line}"):
                runner.run(block)
    finally:
        runner.close()


@pytest.mark.parametrize(
    ("shown", "printed"),
    [('{"a": 1}', '{"a": 2}'), ('{"a": {"b": null}}', '{"a": {}}'), ('{"a": [1]}', '{"a": []}'), ('{"a": 1}', "no")],
)
def test_another_output_is_found(shown: str, printed: str) -> None:
    compare(Block("json", '{"a": {"b": "..."}}', 1), 'x {"c": 1}{"a": {"b": "any", "c": 2}}')
    with pytest.raises(BlockFailure):
        compare(Block("json", shown, 1), printed)
