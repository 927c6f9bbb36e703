"""The cases that are counted, and their counts: one process under Valgrind, and a fork for each case.

Decision: instructions, and not seconds or bytecode. On a shared machine of two cores the time of a request differs by
more than the plugin takes. Counts of bytecode know nothing of what C does below it: pydantic, msgspec, tokenizers,
torch. Processors of rented machines often count no instructions for `perf`. Valgrind counts both, whatever else runs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acmserve.bench.micro.instructions import read_parts, run_counted
from acmserve.bench.overhead.counted_cases import ENDED

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


def count_cases(
    cases: Sequence[tuple[str, ...]],
    imports: Sequence[str] = IMPORTS,
    keep: Callable[[CountedCase], None] = lambda case: None,
) -> list[CountedCase]:
    """Each case is the name of a program in this folder, and its arguments. `keep` gets each as soon as it is counted.

    Raises AcmError where one fails.
    """
    plan = {"imports": imports, "cases": [(program_of(name), *words) for name, *words in cases]}
    found: list[CountedCase] = []
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:

        def told(line: str) -> None:
            # Servers tell something at their start, too.
            if line.startswith(ENDED):
                one = json.loads(line.removeprefix(ENDED))
                case = CountedCase(cases[len(found)], read_parts(Path(folder), one["process"]), one["said"])
                found.append(case)
                keep(case)

        run_counted(PROGRAM, [json.dumps(plan)], Path(folder), told)
    return found


def program_of(name: str) -> str:
    """The module of a program."""
    return f"acmserve.bench.overhead.{name}"
