"""The journal of a run: one line for each sample that was played, so that a run that was killed goes on where it was.

    {"run": digest, "format": 4}
    {"sitting": 1, "machine": ..., ...}
    {"task": "pi-llm", "sample": ..., "way": "tools", "score": 1.0, ...}
    {"task": "pi-llm", "sam                                               <- cut off: it is played again

Each line is on the disk before the next sample begins. The head says which run it is: tasks, ways, samples, model and
budget. A folder that holds another run is refused, since its lines would be counted with these. A run that was ended
and gone on with has several sittings, which may be told. The last line about one counts. Threads may add to it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from acmserve.bench.provenance.kept_file import write_whole
from acmserve.errors import AcmError

FORMAT = 4
"""Rises when what is asked changes: samples of an older one would be counted with others."""
Played = tuple[str, str, str]
"""Task, sample and way."""


class Journal:
    """`records` holds what was played, by task, sample and way. `sittings` are what was told of each, in order."""

    def __init__(self, path: Path, run: str) -> None:
        self._path = path
        self._lock = Lock()
        self.records: dict[Played, dict[str, Any]] = {}
        self.sittings: dict[int, dict[str, Any]] = {}
        head = {"run": run, "format": FORMAT}
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        whole, torn = lines[:-1], lines[-1] if lines else b""
        if whole:
            self._read(whole, head)
        if torn or not whole:
            write_whole(path, b"".join(line + b"\n" for line in whole or [json.dumps(head).encode()]))

    def add(self, record: Mapping[str, Any]) -> None:
        """Write a line, and return when the disk has it."""
        self._write(record)
        self.records[played_of(record)] = dict(record)

    def tell(self, number: int, sitting: Mapping[str, Any]) -> None:
        """Write what is known of a sitting. They count from 1: two may begin in the same second."""
        self._write({"sitting": number, **sitting})
        self.sittings[number] = dict(sitting)

    def _write(self, line: Mapping[str, Any]) -> None:
        with self._lock, self._path.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self, lines: list[bytes], head: Mapping[str, Any]) -> None:
        try:
            found, *told = (json.loads(line) for line in lines)
            self.records = {played_of(line): line for line in told if "sitting" not in line}
            self.sittings = {line.pop("sitting"): line for line in told if "sitting" in line}
        except (ValueError, TypeError, KeyError) as error:
            raise AcmError(f"{self._path} is damaged: {error}. Delete it, or name another --output.") from error
        if found != head:
            raise AcmError(
                f"{self._path} belongs to another run (other tasks, ways, samples, model or budget). "
                "Name another --output, or delete it."
            )


def played_of(record: Mapping[str, Any]) -> Played:
    """What a record is about."""
    return record["task"], record["sample"], record["way"]
