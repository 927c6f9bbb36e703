"""The cases that are counted, and their counts: one process under Valgrind, and a fork for each case.

Decision: instructions, and not seconds or bytecode. On a shared machine of two cores the time of a request differs by
more than the plugin takes. Counts of bytecode know nothing of what C does below it: pydantic, msgspec, tokenizers,
torch. Processors of rented machines often count no instructions for `perf`. Valgrind counts both, whatever else runs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acmserve.bench.micro.instructions import read_parts, run_counted

PROGRAM = "acmserve.bench.overhead.counted_cases"
IMPORTS = (
    "vllm.entrypoints.launchers.app",
    "vllm.entrypoints.launchers.api_server.app_state",
    "vllm.entrypoints.openai.chat_completion.api_router",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
    "acmserve.server.app.serve",
)
"""Nothing of it puts a seam in place: that is `register`, which vLLM calls, or `counted_scheduler.py`."""


@dataclass(frozen=True, slots=True)
class CountedCase:
    """`parts` are the counts of each part in turn. `said` is what the program did, to be held against stock's."""

    words: tuple[str, ...]
    parts: Mapping[str, Sequence[int]]
    said: Any


def count_cases(cases: Sequence[tuple[str, ...]], imports: Sequence[str] = IMPORTS) -> list[CountedCase]:
    """Each case is the name of a program in this folder, and its arguments. Raises AcmError where one fails."""
    plan = {"imports": imports, "cases": [(program_of(name), *words) for name, *words in cases]}
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        _, said = run_counted(PROGRAM, [json.dumps(plan)], Path(folder))
        # In front of them stands what the servers tell at their start.
        ended = [json.loads(line) for line in said.splitlines()[-len(cases) :]]
        return [
            CountedCase(tuple(words), read_parts(Path(folder), one["process"]), one["said"])
            for words, one in zip(cases, ended, strict=True)
        ]


def program_of(name: str) -> str:
    """The module of a program."""
    return f"acmserve.bench.overhead.{name}"
