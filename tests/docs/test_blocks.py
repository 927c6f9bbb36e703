"""Every block of README and docs runs, in order, against a real server, and prints what the page shows.

The first pages run on the bundled model, as their reader does: `test_first_pages.py`. What the others show are counts
of tokens, edits and refusals. These depend on the tokenizer and the template, and a random model of one layer has both.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.docs.pages import FIRST_PAGES, FLEET_PAGES, Block, blocks_of, page_names, read_page
from tests.support.docs.runner import BlockFailure, PageRunner, compare, has_blocks, run_page
from tests.support.server.scripted_server import MODEL, TEMPLATE

MAX_NOT_RUN = 5


@pytest.fixture(scope="module")
def model(scripted_server: str, scripted_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the weights that the server has, and with its chat template, which the server got by a flag."""
    folder = tmp_path_factory.mktemp("page") / "model"
    shutil.copytree(scripted_folder / "model", folder)
    shutil.copy(TEMPLATE, folder / "chat_template.jinja")
    return folder


@pytest.mark.parametrize(
    "name", [name for name in page_names() if has_blocks(name) and name not in (*FIRST_PAGES, *FLEET_PAGES)]
)
def test_blocks_print_what_the_page_shows(name: str, scripted_server: str, model: Path, tmp_path: Path) -> None:
    run_page(name, PageRunner(tmp_path, scripted_server.removeprefix("http://"), MODEL, model))


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
    [
        *(('{"a": 1}', '{"a": 2}'), ('{"a": {"b": null}}', '{"a": {}}'), ('{"a": 1}', "no")),
        *(('{"a": [1]}', '{"a": []}'), ('{"a": []}', '{"a": [1]}')),
    ],
)
def test_another_output_is_found(shown: str, printed: str) -> None:
    compare(Block("json", '{"a": {"b": "..."}}', 1), 'x {"c": 1}{"a": {"b": "any", "c": 2}}')
    with pytest.raises(BlockFailure):
        compare(Block("json", shown, 1), printed)


@pytest.mark.parametrize("printed", ["13\n", "30\n"])
def test_a_number_inside_another_is_not_shown(printed: str) -> None:
    compare(Block("text", "3\n", 1), "it is 3\n")
    with pytest.raises(BlockFailure):
        compare(Block("text", "3\n", 1), printed)
