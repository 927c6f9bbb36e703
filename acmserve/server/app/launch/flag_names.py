"""A flag that nobody knows, and the one that was meant. A wrong command line is one line, not a page of usage.

    --fidelty  --nearest of ours and vLLM's-->  unknown flag --fidelty. Did you mean --fidelity?
    --zzz      --nothing is near------------->  left to vLLM's parser, which a plugin may have extended

It knows names of flags, and nothing of their values.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Sequence
from importlib.metadata import entry_points
from typing import NoReturn

from pydantic import ValidationError

from acmserve.errors import AcmError
from acmserve.server.vllm.source_text import vllm_flags
from acmserve.validation import nearest

_PLATFORMS = "vllm.platform_plugins"
"""Plugins of vLLM that may add flags. Beside one of them, vLLM's parser alone judges names."""
_SPELLINGS = re.compile(r"(?<=\w)/-[\w/-]*:")
_UNRECOGNIZED = "unrecognized arguments:"
HELP = "`acmserve serve --help` lists acmserve's flags, `--help=all` all of vLLM's."


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are `AcmError`: one line that names the flag and its bad value."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print below its usage. An unknown flag is told with the nearest known one."""
        strange = message.removeprefix(_UNRECOGNIZED)
        name = next((_name_of(word) for word in strange.split() if word.startswith("-")), None)
        if strange != message and name is not None:
            raise AcmError(unknown(name, nearest(name, self._option_string_actions)))
        raise AcmError(one_line(message))


def one_line(message: str) -> str:
    """An error about flags as one sentence, with the way to all flags. A flag has one of its spellings."""
    plain = " ".join(message.split()).removeprefix("argument ").removesuffix(".")
    return f"{_SPELLINGS.sub(':', plain, count=1)}. {HELP}"


def reason_of(error: Exception) -> str:
    """What an error says in one line. One of pydantic's says what is wrong first, and shows no input."""
    details = error.errors(include_url=False) if isinstance(error, ValidationError) else ()
    found = "; ".join(str(each["msg"]).removeprefix("Value error, ") for each in details)
    return " ".join((found or str(error) or type(error).__name__).split())


def check_flag_names(words: Sequence[str], ours: Collection[str]) -> None:
    """Raise AcmError for a flag that is nearly one of `ours` or of vLLM's. `words` are what vLLM would read."""
    theirs = vllm_flags()
    if not theirs or entry_points(group=_PLATFORMS):
        return
    for word in words:
        if word == "--":
            return
        if word.startswith("--") and not _is_known(name := _name_of(word), theirs):
            meant = nearest(name, (*ours, *theirs))
            if meant is not None:
                raise AcmError(unknown(name, meant))


def unknown(name: str, meant: str | None) -> str:
    """What is said of an unknown flag."""
    guess = "" if meant is None else f" Did you mean {meant}?"
    return f"unknown flag {name}.{guess} {HELP}"


def _name_of(word: str) -> str:
    """`--a_b.c=d` -> `--a-b`: vLLM takes underscores for dashes, and keys of an object behind a dot."""
    return word.partition("=")[0].partition(".")[0].replace("_", "-")


def _is_known(name: str, flags: Collection[str]) -> bool:
    """Whether vLLM reads it: a flag, its `--no-` form, or the beginning of one."""
    positive = f"--{name.removeprefix('--no-')}" if name.startswith("--no-") else name
    return any(flag.startswith((name, positive)) for flag in flags)
