"""Which command made a file of results, where it is another one than its section or its source names.

    machine.command of the file  beside  the command that measures it again   ->   what stands behind that, or ""

Another order of options makes no other table. Neither does where results went, or where a program lies.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_PLACES = ("--json", "--plot", "--work", "--llama-server")
_GOES_ON = "--resume"


def made_by(commands: Iterable[str], report: Mapping[str, Any]) -> str:
    """The recorded command as Markdown, where it is none of `commands`. "" where one of them is, or nobody noted it."""
    recorded = (report.get("machine") or {}).get("command")
    if not recorded or sorted(_words(recorded)) in (sorted(_words(one)) for one in commands):
        return ""
    return f"`{recorded}`"


def _words(command: str) -> Iterator[str]:
    """Those that decide what is measured."""
    is_place = False
    for word in shlex.split(command):
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if is_place:
            is_place = False
        elif name in _PLACES:
            is_place = not equals
        elif name != _GOES_ON:
            yield name
            yield from [value] * bool(equals)
