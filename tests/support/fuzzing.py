"""How many examples the fuzzers draw: few in the suite, and by default fifty times as many in `make fuzz`."""

from __future__ import annotations

import os

FACTOR = int(os.environ.get("ACMSERVE_FUZZ_FACTOR", "1"))
