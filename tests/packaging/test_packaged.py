"""A model whose GGUF file is cut into parts: the parts go one behind the other, and are checked as one file."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from acmserve.errors import AcmError
from acmserve.models.packaged import PackagedModel

WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def test_parts_are_put_together_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for number, content in enumerate((b"first,", b"second")):
        with zipfile.ZipFile(tmp_path / f"part{number}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"part{number}/data.gguf", content)
            wheel.writestr(
                f"part{number}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: part{number}\nVersion: 1.0\n"
            )
            wheel.writestr(f"part{number}-1.0.dist-info/WHEEL", WHEEL)
            wheel.writestr(f"part{number}-1.0.dist-info/RECORD", "")
    parts = tuple((f"part{number}==1.0", f"part{number}/data.gguf") for number in range(2))
    model = PackagedModel("parts", parts, gguf_sha256="0" * 64, megabytes=1)
    together = hashlib.sha256(b"first,second").hexdigest()
    with pytest.raises(AcmError, match=f"part0/data.gguf, part1/data.gguf is {together}, expected 0000"):
        model.prepare(tmp_path / "models" / "parts")
    assert not (tmp_path / "models" / "parts").exists()
