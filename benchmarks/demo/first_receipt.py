"""From nothing to the first receipt: `make demo` in a fresh clone, with every cache empty, and when it came how far.

    packages   the virtual environment and what the lock file names, from the registry that pip is set up with
    build      the C++ extension, and the start of the demo
    model      SmolLM2, downloaded and converted
    engine     until it takes requests
    receipt    the conversation so far is read for three sequences, then the first turn has its receipts

The clock starts where git has made the clone. `python -m benchmarks.demo.first_receipt`, in a checkout, with Python
alone: what it measures is the installation of everything else.

Decision: the phases are told by lines that the demo prints to its user anyway. So nothing is run for the clock's sake,
and a line that changes ends the measurement by name.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.harness.machine import describe_machine
from acmserve.bench.harness.options import as_json
from acmserve.bench.provenance.kept_file import write_whole
from acmserve.bench.provenance.machine_use import ProcessorTimes, use_between
from acmserve.errors import AcmError

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ("make", "demo")
ENDS = {
    "packages": "[5/5]",
    "build": "An agent conversation",
    "model": "starting the engine",
    "engine": "reading the conversation",
    "receipt": "turn 1, ",
}
"""Each phase ends with the first line behind the one before it that starts with these words."""
_OWN = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
"""What a new shell of a user does not have."""
_ABOUT = (
    "import json; from acmserve.bench.harness.machine import describe_machine; print(json.dumps(describe_machine()))"
)
_TOLD_BY_THE_CLONE = ("commit", "changed", "python", "versions")


def clean_environment(environ: Mapping[str, str], cache: Path) -> dict[str, str]:
    """The environment of a user on whose machine nothing was ever downloaded. pip's own settings stay."""
    kept = {name: value for name, value in environ.items() if name not in _OWN and not name.startswith("ACMSERVE_")}
    return kept | {"XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"}


def phase_seconds(lines: Iterable[tuple[float, str]]) -> dict[str, float]:
    """Seconds of each phase, from (seconds since the start, line) of everything that was printed.

    Raises `AcmError` for the first phase that no line ends.
    """
    found: dict[str, float] = {}
    printed, before = iter(lines), 0.0
    for phase, end in ENDS.items():
        now = next((seconds for seconds, line in printed if line.startswith(end)), None)
        if now is None:
            raise AcmError(f"{' '.join(COMMAND)} never said {end!r}, which ends the phase {phase!r}")
        found[phase] = round(now - before, 1)
        before = now
    return found


def run_demo(checkout: Path, environ: Mapping[str, str]) -> Iterator[tuple[float, str]]:
    """Each line of the command with its time. Raises `AcmError` where it fails."""
    began, last = time.monotonic(), ""
    with subprocess.Popen(
        COMMAND, cwd=checkout, env=dict(environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last = line.rstrip()
            print(f"{time.monotonic() - began:7.1f} s  {last}", file=sys.stderr, flush=True)
            yield time.monotonic() - began, line
    if process.returncode:
        raise AcmError(f"{' '.join(COMMAND)} failed: {last}")


def measure(root: Path, work: Path) -> dict[str, Any]:
    """Clone the commit of `root` into `work` and run the command there. JSON-ready."""
    checkout = work / "acmserve"
    subprocess.run(["git", "clone", "--quiet", str(root), str(checkout)], check=True)
    machine, began = describe_machine(), ProcessorTimes.now()
    lines = list(run_demo(checkout, clean_environment(os.environ, work / "cache")))
    use, seconds = use_between(began, ProcessorTimes.now()), phase_seconds(lines)
    asked = [str(checkout / ".venv/bin/python"), "-c", _ABOUT]
    told = json.loads(subprocess.run(asked, cwd=checkout, check=True, stdout=subprocess.PIPE).stdout)
    return {
        "machine": machine | {name: told[name] for name in _TOLD_BY_THE_CLONE},
        "use": use,
        "command": " ".join(COMMAND),
        "seconds": seconds,
        "first_receipt_seconds": round(sum(seconds.values()), 1),
    }


def main(argv: Sequence[str]) -> int:
    """Entry of `make first-receipt`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo.first_receipt", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write numbers, machine and commit")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="acmserve-first-receipt-") as work:
        report = measure(ROOT, Path(work))
    print("  ".join(f"{phase} {seconds:.0f} s" for phase, seconds in report["seconds"].items()))
    print(f"the first receipt after {report['first_receipt_seconds']:.0f} s")
    if options.json is not None:
        write_whole(options.json, as_json(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
