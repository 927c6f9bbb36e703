"""Levels of `auto`, and the file that says which one a model gets: read whole, or refused with the remedy."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.engine.config import EngineConfig
from acmserve.errors import AcmError
from acmserve.plan.auto import DEFAULT_THRESHOLDS, Features, choose_fidelity
from acmserve.plan.calibration import CAREFUL, EVERY, EXACT, LEVELS, CalibratedShape, Calibration, read_calibration

CONFIG = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 16, "vocab_size": 100}
SHAPE = CalibratedShape.of_config(CONFIG)
COUNTS = st.integers(0, 5000)


def written(folder: Path, level: str = CAREFUL, **changed: Any) -> str:
    """The path of a file, with some of its entries changed."""
    file = folder / "c.json"
    found = json.loads(Calibration("m", SHAPE, level, LEVELS[level]).as_json({"n": 1})) | changed
    file.write_text(json.dumps(found), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("level", LEVELS)
def test_a_file_says_what_was_chosen(tmp_path: Path, level: str) -> None:
    path = written(tmp_path, level)
    assert read_calibration(path, "c") == Calibration("m", SHAPE, level, LEVELS[level])
    assert EngineConfig.parse({"calibration": path}).thresholds(CONFIG) == LEVELS[level]


def test_without_a_file_auto_is_as_on_our_model() -> None:
    assert EngineConfig().thresholds(CONFIG) == DEFAULT_THRESHOLDS


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"format": "receipt"}, "is no calibration"),
        ({"version": 7}, "has version 7, and 1 is known"),
        ({"shape": {"num_layers": 2}}, "is damaged"),
        ({"thresholds": {"min_rest": 32}}, "is damaged: thresholds are 'min_rest'"),
        ({"thresholds": dict.fromkeys(("max_anew_share",), "x")}, "is damaged"),
        ({"thresholds": None}, "is damaged: level is 'careful' and has no thresholds"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(AcmError, match=said) as error:
        read_calibration(written(tmp_path, **changed), "--calibration")
    assert "--calibration" in str(error.value)
    assert "acmserve calibrate MODEL" in str(error.value) or "Measure it anew" in str(error.value)


def test_a_threshold_below_nothing_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    found = json.loads(Path(path).read_text(encoding="utf-8"))
    found["thresholds"]["max_anew_share"] = -1
    with pytest.raises(AcmError, match=r"thresholds\.max_anew_share is -1"):
        read_calibration(written(tmp_path, thresholds=found["thresholds"]), "c")


def test_a_level_that_moves_nothing_has_no_thresholds(tmp_path: Path) -> None:
    """The server said that `auto` moves nothing, and moved by the thresholds."""
    thresholds = json.loads(Path(written(tmp_path)).read_text(encoding="utf-8"))["thresholds"]
    with pytest.raises(AcmError, match="is damaged: level is 'exact' and has thresholds, which 'exact' alone has not"):
        read_calibration(written(tmp_path, EXACT, thresholds=thresholds), "c")


def test_a_file_that_is_not_there_or_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AcmError, match="cannot be read: No such file"):
        read_calibration(str(tmp_path / "none.json"), "c")
    (tmp_path / "text").write_text("{", encoding="utf-8")
    with pytest.raises(AcmError, match="is no JSON"):
        read_calibration(str(tmp_path / "text"), "c")


def test_another_model_is_refused_and_what_is_not_told_is_not_compared(tmp_path: Path) -> None:
    found = read_calibration(written(tmp_path), "c")
    with pytest.raises(AcmError, match=r"num_layers is 3, and was 2, vocab_size is 9, and was 100"):
        found.check_model(CONFIG | {"num_hidden_layers": 3, "vocab_size": 9}, "c")
    found.check_model({"hidden_size": 16}, "c")
    found.check_model({"architectures": ["LlamaForCausalLM"], "text_config": CONFIG}, "c")


@given(st.builds(Features, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS))
def test_each_level_moves_wherever_a_more_careful_one_does(features: Features) -> None:
    moves = [
        thresholds is not None and choose_fidelity(features, thresholds=thresholds).fidelity != "exact"
        for thresholds in LEVELS.values()
    ]
    assert all(bold or not careful for careful, bold in pairwise(moves)), moves
    assert next(iter(LEVELS)) == EXACT
    assert list(LEVELS)[-1] == EVERY
