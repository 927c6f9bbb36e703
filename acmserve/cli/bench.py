"""`acmserve bench`: the benchmarks by name. They are found in the folder of the benchmarks, and each owns its flags."""

from __future__ import annotations

from acmserve.cli.command import Command
from acmserve.errors import AcmError

_HELP = """\
usage: acmserve bench NAME [options]

{}

`acmserve bench edit --help` lists its options. Every benchmark checks correctness first and reports no speed-up
when that check fails (exit code 1). --max-minutes N ends any of them after N minutes. One that is ended stops its
servers and keeps what it measured in NAME.partial.json, or beside the file of --json. `eval` has a whole table of
fewer samples then, and goes on with it later.
"""


def _run(arguments: list[str]) -> int:
    from acmserve.bench.harness.benchmark import find_benchmarks

    known = find_benchmarks()
    name = arguments[0] if arguments else "--help"
    if name in {"-h", "--help"}:
        print(_HELP.format("\n".join(f"  {one.name:<12} {one.help}" for one in known.values())), end="")
        return 0
    if name not in known:
        raise AcmError(f"unknown benchmark {name!r}; choose one of {', '.join(known)}")
    from acmserve.bench.harness.ending import run_to_its_end

    return run_to_its_end(known[name].load(), arguments[1:])


BENCH = Command("measure on this machine; `acmserve bench` lists what", _run)
