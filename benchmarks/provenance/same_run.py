"""Whether a run may go on with what an ended one left. It knows neither benchmark nor file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.provenance.code_state import ROOT, is_same_code
from acmserve.errors import AcmError

SAME_PROCESSOR = ("cpu", "vectors", "versions")
"""Of a machine: what tokens and counts depend on, beside the code."""

SAME_MACHINE = ("cpu", "vectors", "cores", "memory_gib", "versions")
"""Of a machine: what times depend on, beside the code."""


def check_same_run(
    then: Mapping[str, Any],
    now: Mapping[str, Any],
    same: Sequence[str],
    measures: Sequence[str],
    others: Sequence[str] = (),
    root: Path = ROOT,
) -> None:
    """Raises AcmError where the machine of the ended run differs in `same`, or its code in the paths it `measures`.

    `others` are differences that the benchmark found itself. Code is compared by content, in the checkout `root`.
    """
    found = [*others, *(f"{one} {then.get(one)}, now {now[one]}" for one in same if then.get(one) != now[one])]
    if not is_same_code(then, now["commit"], measures, root):
        found.append(f"other code: {then['commit']}, now {now['commit']}")
    if found:
        raise AcmError(f"--resume: the run that was ended had {'; '.join(found)}. Begin anew without --resume")
