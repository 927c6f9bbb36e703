"""`make clients`: no sentence of a client's prompts stands in a file of this repository.

Looked for are all lines of 60 characters and more that the recordings of the matrix hold. What our own programs tell
their framework is ours, and stands in `programs/`.
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.support.clients.facts import texts_of
from tests.support.clients.installed import CLIENTS, ROOT

pytestmark = pytest.mark.skipif(
    not os.environ.get("ACMSERVE_CLIENTS"), reason="`make clients` installs agents from registries"
)

MIN_CHARS = 60
OURS = "tests/support/clients/programs/"


def one_line(text: str) -> str:
    """The text with a single space between words: a file may break a sentence where it likes."""
    return " ".join(text.split())


@cache
def tracked() -> dict[str, str]:
    """The texts of the repository, by their paths."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [Path(ROOT, name) for name in listed.split("\0") if name]
    return {
        str(file.relative_to(ROOT)): one_line(file.read_text(encoding="utf-8", errors="ignore"))
        for file in files
        if file.is_file()
    }


def recorded() -> set[str]:
    """The long lines of every request of the matrix."""
    texts: set[str] = set()
    for recording in CLIENTS.glob("walks/*/*/recording.jsonl"):
        for line in recording.read_text(encoding="utf-8").splitlines():
            texts.update(texts_of(json.loads(line)["body"]))
    lines = (one_line(line) for text in texts for line in text.splitlines())
    return {line for line in lines if len(line) >= MIN_CHARS}


def holders(lines: set[str]) -> dict[str, str]:
    """Lines that stand in a tracked file, and in which one."""
    everything = "\n".join(tracked().values())
    standing = {line for line in lines if line in everything}
    return {line: name for name, text in tracked().items() for line in standing if line in text}


def test_nothing_of_a_clients_text_is_committed() -> None:
    lines = recorded()
    if not lines:
        pytest.skip("no client was driven here")
    found = holders(lines)
    assert {line: name for line, name in found.items() if not name.startswith(OURS)} == {}


def test_control_what_is_committed_is_found() -> None:
    words = one_line(Path(__file__).read_text(encoding="utf-8"))[:MIN_CHARS]
    assert set(holders({words, words[::-1]})) == {words}
