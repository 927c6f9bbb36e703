"""Files that keep what took long to measure: whole or as they were, and told by name where they cannot be read.

    write_whole     FILE.part, then one rename: who is killed meanwhile leaves the old file
    read_kept       a JSON object, or an AcmError with the file and the remedy
    kept_entries    the same for what is looked up in such an object

It knows no benchmark.

Decision: a pipe or a device is written to as it is. A rename would put a file in its place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acmserve.errors import AcmError


def write_whole(file: Path, content: str | bytes) -> None:
    """Write a file, all of it or nothing. Raises AcmError where that cannot be done, and what was there stays."""
    data = content.encode() if isinstance(content, str) else content
    try:
        if file.exists() and not file.is_file():
            file.write_bytes(data)
        else:
            _replace(file.resolve(), data)
    except OSError as error:
        raise AcmError(
            f"{file} cannot be written: {error.strerror or error}. "
            "What was there is left as it was. Name a file in a folder that is there and has room."
        ) from error


def _replace(file: Path, data: bytes) -> None:
    part = file.with_name(f"{file.name}.part")
    try:
        with part.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def read_kept(file: Path, remedy: str) -> dict[str, Any]:
    """The JSON object in a file. Raises AcmError where there is none, or a part of one."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        why = "" if isinstance(found, dict) else "it holds no JSON object"
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
    except RecursionError:
        why = "it is nested too deeply"
    if why:
        raise AcmError(f"{file} cannot be read: {why}. {remedy}")
    kept: dict[str, Any] = found
    return kept


@contextmanager
def kept_entries(file: Path, remedy: str) -> Iterator[None]:
    """Around what takes a kept file apart: what is missing, cut off or of another kind is an AcmError."""
    try:
        yield
    except AcmError:
        raise
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise AcmError(f"{file} cannot be gone on with: {type(error).__name__}: {error}. {remedy}") from error
