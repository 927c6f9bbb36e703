"""How bold `auto` is on one model: a level that was measured on it, as `acmserve calibrate` writes it.

    acmserve calibrate MODEL --out FILE     measures moves on this model, and writes the level that passed
    acmserve serve MODEL --calibration FILE

A level is a name and its thresholds. `exact` has none: `auto` then moves nothing. `every` has none that refuse: what a
calibration measures with, and nothing that a server should run.

It does not know how a level was chosen. Decision: a file holds the numbers and not the name alone, so that a later
release with other levels serves what was measured. A file is for models of one shape. Two models that were tuned from
one base have the same shape, so the name is told to the operator.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from acmserve.errors import AcmError
from acmserve.plan.auto import DEFAULT_THRESHOLDS, Thresholds
from acmserve.validation import echo, listing

FORMAT = "acmserve calibration"
VERSION = 1
EXACT, CAREFUL, DEFAULT, BOLD, EVERY = "exact", "careful", "default", "bold", "every"
NEVER_MOVES = "level exact: moves harmed answers, here or where this model was calibrated"
"""What the receipt of `auto` says where the level is `exact`."""
_NO_BOUND = 10.0**9

LEVELS: Mapping[str, Thresholds | None] = {
    EXACT: None,
    CAREFUL: Thresholds(
        max_anew_share=0.75,
        max_removed_ratio=6.0,
        min_wide_echoed_share=0.5,
        max_single_ratio=1.0,
        min_echoed_share=0.2,
        max_plain_ratio=0.5,
        min_plain_tokens=512,
    ),
    DEFAULT: DEFAULT_THRESHOLDS,
    BOLD: Thresholds(
        wide_ratio=6.0, max_single_ratio=6.0, min_echoed_share=0.05, max_plain_ratio=3.0, min_plain_tokens=128
    ),
    EVERY: Thresholds(
        max_anew_share=1.0,
        min_rest=0,
        max_listed_share=1.0,
        max_removed_ratio=_NO_BOUND,
        wide_ratio=_NO_BOUND,
        min_wide_echoed_share=0.0,
        max_single_ratio=_NO_BOUND,
        min_echoed_share=0.0,
        max_unmarked=int(_NO_BOUND),
        max_inserted_ratio=_NO_BOUND,
        max_removed_before_ratio=_NO_BOUND,
    ),
}
"""From the most careful one to the boldest."""


@dataclass(frozen=True, slots=True)
class CalibratedShape:
    """What a calibration is for. Counts of one token's path through the model."""

    architecture: str
    num_layers: int
    hidden_size: int
    vocab_size: int

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> CalibratedShape:
        """From a whole Hugging Face configuration, as a dictionary. Raises KeyError where it has no such sizes."""
        return cls(**{name: _size(config, name) for name in (f.name for f in fields(cls))})


def _size(config: Mapping[str, Any], name: str) -> Any:
    """One field of `CalibratedShape`. Of a multimodal model, its text part counts."""
    text = config.get("text_config") or config
    if name == "architecture":
        return config["architectures"][0]
    return text["num_hidden_layers" if name == "num_layers" else name]


@dataclass(frozen=True, slots=True)
class Calibration:
    """`model` is the name that was measured. `thresholds` None: `auto` moves nothing."""

    model: str
    shape: CalibratedShape
    level: str
    thresholds: Thresholds | None

    def as_json(self, measured: Mapping[str, Any]) -> str:
        """The file. `measured` is what the level was chosen from: it is kept for people, and read by nobody."""
        head = {"format": FORMAT, "version": VERSION, "model": self.model, "shape": asdict(self.shape)}
        thresholds = None if self.thresholds is None else asdict(self.thresholds)
        return json.dumps(head | {"level": self.level, "thresholds": thresholds, "measured": measured}, indent=2) + "\n"

    def check_model(self, config: Mapping[str, Any], where: str) -> None:
        """Raise AcmError unless the model that is served has the shape of the one that was measured.

        `config` is a Hugging Face configuration as a dictionary. What a plain config.json leaves out is not compared.
        """
        other = []
        for name in (f.name for f in fields(CalibratedShape)):
            with contextlib.suppress(KeyError):
                served, measured = _size(config, name), getattr(self.shape, name)
                if served != measured:
                    other.append(f"{name} is {served}, and was {measured}")
        if other:
            raise AcmError(
                f"{where} was measured on {self.model}, which is another model: {', '.join(other)}. "
                "`acmserve calibrate MODEL` measures the one that is served."
            )


def read_calibration(path: str, where: str) -> Calibration:
    """Read a file of `acmserve calibrate`. Raises AcmError, which names the file as `where` does, and the remedy."""
    where = f"{where} {path}"
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise AcmError(f"{where} cannot be read: {error.strerror}. `acmserve calibrate MODEL` writes one.") from None
    except ValueError as error:
        raise AcmError(f"{where} is no JSON: {error}. `acmserve calibrate MODEL` writes one.") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise AcmError(f"{where} is no calibration. `acmserve calibrate MODEL` writes one.")
    if found.get("version") != VERSION:
        raise AcmError(f"{where} has version {echo(found.get('version'))}, and {VERSION} is known. Measure it anew.")
    try:
        shape = CalibratedShape(**found["shape"])
        thresholds = None if found["thresholds"] is None else _thresholds(found["thresholds"])
        level = str(found["level"])
        if (level == EXACT) != (thresholds is None):
            has = "no thresholds" if thresholds is None else "thresholds"
            raise ValueError(f"level is {echo(level)} and has {has}, which {EXACT!a} alone has not")
        return Calibration(str(found["model"]), shape, level, thresholds)
    except (KeyError, TypeError, ValueError) as error:
        raise AcmError(f"{where} is damaged: {error}. `acmserve calibrate MODEL` writes one.") from None


def _thresholds(found: Mapping[str, Any]) -> Thresholds:
    """Every threshold has to be there: a number that fell out would come back as ours."""
    names = [f.name for f in fields(Thresholds)]
    if sorted(found) != sorted(names):
        raise ValueError(f"thresholds are {listing(sorted(found))}, and should be {listing(names)}")
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise ValueError(f"thresholds.{name} is {echo(value)}, and should be a number of at least 0")
    return Thresholds(**found)
