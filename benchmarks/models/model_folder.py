"""The model that a benchmark is told to use, as a folder: a bundled one by its name, or the user's own."""

from __future__ import annotations

from pathlib import Path

from acmserve.bench.harness.run_log import progress
from acmserve.errors import AcmError


def prepare_model(name: str) -> Path:
    """The folder of `smollm2` or `gemma3`, prepared first where needed, or the Hugging Face folder `name`.

    Raises AcmError for a folder that holds no model.
    """
    from acmserve.models import gemma3, smollm2

    bundled = {"smollm2": smollm2.prepare, "gemma3": gemma3.prepare}
    if name in bundled:
        return bundled[name](progress=progress)
    folder = Path(name)
    if not (folder / "config.json").is_file():
        raise AcmError(f"{name} is not a Hugging Face folder (no config.json in it); name one, or smollm2 or gemma3")
    return folder.absolute()
