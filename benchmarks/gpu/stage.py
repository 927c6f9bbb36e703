"""The stages of the suite in order of worth, and how long each may take on a card of the H100's class.

The minutes are ample for an H200, and only decide what still begins within a limit. What was measured is kept, one file
for each stage, so that a run that was cut goes on where it stopped:

    FOLDER/fold.json    {"key": what it was measured with, "report": ...}
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import acmserve
from acmserve.bench.harness.options import as_json
from acmserve.bench.provenance.kept_file import read_kept, write_whole
from acmserve.errors import AcmError

MINUTES = 45.0
START_MINUTES = 3.0
"""Two engines of one type of KV."""
KERNEL, HOLES, FOLD, OVERHEAD, DECODE, SESSIONS = "kernel", "holes", "fold", "overhead", "decode", "sessions"
AUTO, FP8 = "auto", "fp8"
"""vLLM's names of types of KV. `AUTO` is the model's own: bfloat16 on a card, float32 on a CPU."""


@dataclass(frozen=True, slots=True)
class SuiteStage:
    """`kind` is one of those above. `kv_type` is vLLM's `kv_cache_dtype`, "" for a program of its own."""

    kind: str
    kv_type: str
    minutes: float
    what: str

    @property
    def name(self) -> str:
        """The name of its file, and what `--stages` takes."""
        return self.kind if self.kv_type in {"", AUTO} else f"{self.kind}-{self.kv_type}"


STAGES = (
    SuiteStage(KERNEL, "", 3.0, "moves beside copies of as many bytes"),
    SuiteStage(HOLES, "", 2.0, "many holes in one forward pass, answers beside a step for each"),
    SuiteStage(FOLD, AUTO, 6.0, "a fold by length, answers first"),
    SuiteStage(OVERHEAD, AUTO, 2.0, "requests without a session, beside stock"),
    SuiteStage(DECODE, AUTO, 1.0, "prefill beside a decode"),
    SuiteStage(SESSIONS, AUTO, 7.0, "sessions side by side"),
    SuiteStage(FOLD, FP8, 6.0, "a fold by length, KV in fp8"),
    SuiteStage(SESSIONS, FP8, 7.0, "sessions side by side, KV in fp8"),
)
NAMES = tuple(stage.name for stage in STAGES)


def holds_bar(over: Mapping[str, Any], bar: float) -> bool:
    """Whether a ratio is at most so large, by the worse end of its 95 % interval."""
    return bool(over["interval"][1] <= bar)


def by_type(names: Sequence[str]) -> list[tuple[str, list[SuiteStage]]]:
    """The wanted stages in order of worth, together where they share engines."""
    wanted = [stage for stage in STAGES if stage.name in names]
    types = dict.fromkeys(stage.kv_type for stage in wanted)
    return [(kv_type, [stage for stage in wanted if stage.kv_type == kv_type]) for kv_type in types]


def planned_minutes(names: Sequence[str]) -> float:
    """All stages, and the starts of their engines."""
    return sum(
        (START_MINUTES if kv_type else 0.0) + sum(stage.minutes for stage in some) for kv_type, some in by_type(names)
    )


def plan_lines(names: Sequence[str]) -> list[str]:
    """What people read before anything runs."""
    lines = [f"  {stage.name:<14}{stage.minutes:4.0f} min  {stage.what}" for stage in STAGES if stage.name in names]
    return [
        *lines,
        f"at most {planned_minutes(names):.0f} minutes on a card of the H100's class, with all starts",
    ]


def code_digest() -> str:
    """Equal for equal sources of acmserve and its benchmarks.

    Not the commit: results that lie in the checkout make that another one.
    """
    found = hashlib.sha256()
    files = [
        Path(folder) / name
        for folder, _, names in os.walk(acmserve.__path__[0], followlinks=True)
        for name in names
        if name.endswith(".py")
    ]
    for file in sorted(files):
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


class KeptStages:
    """The stages of one suite in a folder, which is made where there is none.

    One is taken over where its gate is green and its key the same. Anything else is measured anew, also a cut file.
    """

    def __init__(self, folder: Path, key: Mapping[str, Any]) -> None:
        self._folder = folder
        self._key = json.loads(json.dumps(key))
        folder.mkdir(parents=True, exist_ok=True)

    def take(self, name: str) -> dict[str, Any] | None:
        """What was measured before, or None."""
        file = self._file(name)
        try:
            found = read_kept(file, "") if file.is_file() else {}
        except AcmError:
            return None
        if found.get("key") != self._key or not found["report"]["gate"]["green"]:
            return None
        report: dict[str, Any] = found["report"]
        return report

    def keep(self, name: str, report: Mapping[str, Any]) -> None:
        """Write a stage as soon as it is measured, all of it or nothing."""
        write_whole(self._file(name), as_json({"key": self._key, "report": dict(report)}))

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.json"
