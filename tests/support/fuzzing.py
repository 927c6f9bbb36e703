"""How many examples the fuzzers draw: few in the suite, `make fuzz` fifty times as many."""

from __future__ import annotations

import os

FACTOR = int(os.environ.get("ACMSERVE_FUZZ_FACTOR", "1"))
