"""`acmserve eval`: answers on the papers' tasks, from any server, with edited contexts and without.

The evaluation stands with the benchmarks and owns its flags. So it is imported when it is called, and not for
`acmserve --help`.
"""

from __future__ import annotations

from acmserve.cli.command import Command


def _run(arguments: list[str]) -> int:
    from acmserve.bench.eval.main import main

    return main(arguments)


EVAL = Command("right answers on the papers' tasks from any server, with edited contexts and without", _run)
