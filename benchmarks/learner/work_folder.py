"""The folder in which the stages of a run leave what they made: of one recipe, with the time that each stage took.

    settings.json    the recipe, as told by the caller
    seconds.json     wall clock of each stage, those of runs that were cut off included

Knows no stage. Decision: another recipe is refused. Else a model of ten steps would be reported as one of twenty.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acmserve.bench.provenance.kept_file import kept_entries, read_kept, write_whole
from acmserve.errors import AcmError
from acmserve.models.packaged import cache_folder


def default_work() -> Path:
    """Beside the prepared models."""
    return cache_folder() / "learner"


class WorkFolder:
    """Raises AcmError where the folder holds what another recipe made, or one of the two files cannot be read."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        kept = self._read("settings.json") or dict(settings)
        for name in sorted({*kept, *settings}):
            if kept.get(name) != settings.get(name):
                raise AcmError(
                    f"{path} was made with {name} {kept.get(name)}, not {settings.get(name)}. "
                    "Remove it, or name another folder with --work."
                )
        # Before a stage runs: times that cannot be added to would be told behind it.
        self.minutes()
        self._write("settings.json", kept)

    @contextmanager
    def timed(self, stage: str, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
        """Add what happens inside to the time of a stage."""
        begun = clock()
        try:
            yield
        finally:
            seconds = self._read("seconds.json")
            seconds[stage] = seconds.get(stage, 0.0) + clock() - begun
            self._write("seconds.json", seconds)

    def minutes(self) -> dict[str, float]:
        """What each stage took, in their order."""
        with kept_entries(self.path / "seconds.json", self._remedy):
            return {stage: round(seconds / 60, 1) for stage, seconds in self._read("seconds.json").items()}

    @property
    def _remedy(self) -> str:
        return f"Remove {self.path}, or name another folder with --work."

    def _read(self, name: str) -> dict[str, Any]:
        file = self.path / name
        return read_kept(file, self._remedy) if file.exists() else {}

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        write_whole(self.path / name, json.dumps(value, indent=2) + "\n")
