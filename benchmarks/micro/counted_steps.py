"""`python -m acmserve.bench.micro.counted_steps COLUMN`: decode steps of one scheduler, for Valgrind to count.

The steps are those of `bench_step.py`. Prints what each of them scheduled as a line of JSON. Garbage is collected in
front of them and not meanwhile: when Python collects depends on all that was made before, imports included.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from pathlib import Path

from acmserve.bench.micro.bench_step import COLUMNS, start_scheduler, take_step
from acmserve.bench.micro.instructions import counting

NUM_STEPS, NUM_WARMUP_STEPS = 40, 20


def main(column: str) -> None:
    """Warm up, then take the counted steps. Every request decodes one token in each of them."""
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        scheduler = start_scheduler(Path(folder), column)
        scheduled = [take_step(scheduler) for _ in range(NUM_WARMUP_STEPS)]
        gc.collect()
        gc.disable()
        with counting():
            scheduled += [take_step(scheduler) for _ in range(NUM_STEPS)]
    print(json.dumps(scheduled))


if __name__ == "__main__":
    assert sys.argv[1] in COLUMNS, f"unknown column {sys.argv[1]!r}"
    main(sys.argv[1])
