"""Files that keep what took long to measure: a write that ends in its middle leaves what was there."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.provenance import kept_file
from acmserve.bench.provenance.kept_file import kept_entries, read_kept, write_whole
from acmserve.errors import AcmError, InvalidRequest


@pytest.mark.parametrize("content", ["new\n", b"\xff new"])
def test_a_file_is_replaced_as_a_whole(content: str | bytes, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    for _ in range(2):
        write_whole(file, content)
    assert file.read_bytes() == (content if isinstance(content, bytes) else content.encode())
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_what_ends_a_write_leaves_the_old_file_and_nothing_beside_it(
    stop: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "result.json"
    write_whole(file, "old")

    def end(_: int) -> None:
        raise stop

    monkeypatch.setattr(kept_file.os, "fsync", end)
    with pytest.raises((KeyboardInterrupt, AcmError)) as raised:
        write_whole(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
    if isinstance(stop, OSError):
        assert str(raised.value).startswith(f"{file} cannot be written: No space left on device. ")


def test_a_link_stays_one_and_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    file, link = tmp_path / "result.json", tmp_path / "link.json"
    link.symlink_to(file)
    write_whole(link, "new")
    assert (link.is_symlink(), file.read_text()) == (True, "new")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", "told")
    assert os.read(reader, 9) == b"told"
    os.close(reader)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(AcmError, match=r"none/result\.json cannot be written: No such file or directory"):
        write_whole(tmp_path / "none" / "result.json", "new")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"rounds": [1,', "Expecting value"),
        (b"", "Expecting value"),
        (b"\xff", "can't decode"),
        (b"[" * 200_000, "nested too deeply"),
        (b"[1]", "it holds no JSON object"),
        (None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_by_name_with_the_remedy(
    content: bytes | None, told: str, tmp_path: Path
) -> None:
    file = tmp_path / "kept.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(AcmError) as raised:
        read_kept(file, "Remove it.")
    assert str(raised.value).startswith(f"{file} cannot be read: ")
    assert told in str(raised.value)
    assert str(raised.value).endswith(" Remove it.")
    file.write_text('{"a": 1}')
    assert read_kept(file, "Remove it.") == {"a": 1}


def test_entries_that_are_missing_or_of_another_kind_are_told_by_name_with_the_remedy() -> None:
    report: Any = {"number": 1}
    for read in (lambda: report["rounds"], lambda: report["number"]["use"], lambda: report.rounds, lambda: int("x")):
        with (
            pytest.raises(AcmError, match=r"kept\.json cannot be gone on with: .+Error: .+\. Remove it\."),
            kept_entries(Path("kept.json"), "Remove it."),
        ):
            read()
    with pytest.raises(InvalidRequest, match="its own words"), kept_entries(Path("kept.json"), "Remove it."):
        raise InvalidRequest("field", "its own words")


WRITTEN_IN_PLACE = {
    "calibrate/main.py": "a calibration in a scratch folder",
    "families/family.py": "a model in a scratch folder",
    "gpu/served_model.py": "a model in a scratch folder",
    "micro/bench_step.py": "a model in a scratch folder",
    "precompute/main.py": "a template in a scratch folder",
    "precompute/thoughts.py": "a template in a scratch folder",
    "provenance/kept_file.py": "the place itself",
    "report/compatibility.py": "a page, made from results in seconds",
    "report/edit_picture.py": "a picture, made from results in seconds",
    "report/page.py": "a page, made from results in seconds",
}
"""Files of benchmarks that write over what is there, and why nothing is lost by that."""


def test_nothing_else_writes_over_what_was_measured() -> None:
    root = Path(kept_file.__file__).parents[1]
    found = {
        str(file.relative_to(root))
        for file in root.rglob("*.py")
        if re.search(r"\.write_(text|bytes)\(", file.read_text(encoding="utf-8"))
    }
    assert found == WRITTEN_IN_PLACE.keys()
