"""What vLLM's command line knows, read from vLLM's source text: importing vLLM takes seconds, this does not.

Decision: too many names are read rather than too few. Every long flag that stands as a text in the two files counts,
and every annotated name, of which vLLM makes flags. So a flag that vLLM has is never taken for an unknown one. Where a
file is not found nothing is known, and vLLM's own parser judges alone.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_FLAG_FILES = ("engine/arg_utils.py", "entrypoints/launchers/cli_args.py")
_FLAG = re.compile(r"[\"'](--[a-z0-9][a-z0-9_-]*)[\"']")
_ANNOTATED = re.compile(r"^    ([a-z][a-z0-9_]*): ", re.MULTILINE)
_DTYPES = re.compile(r"^ModelDType = Literal\[([^\]]*)\]", re.MULTILINE)
_NAME = re.compile(r"[\"']([a-z0-9]+)[\"']")


@cache
def vllm_flags() -> frozenset[str]:
    """The long flags of `vllm serve` with dashes, and some names more. Empty where vLLM's files are not as expected."""
    texts = [_source(name) for name in _FLAG_FILES]
    if not all(texts):
        return frozenset()
    return frozenset(_flags_of(texts)) | {"--help"}


def model_dtypes() -> tuple[str, ...]:
    """What `--dtype` may be. Empty where vLLM's file is not as expected."""
    found = _DTYPES.search(_source("config/model.py"))
    return () if found is None else tuple(_NAME.findall(found.group(1)))


def _flags_of(texts: list[str]) -> Iterator[str]:
    for text in texts:
        yield from _FLAG.findall(text)
        yield from (f"--{name.replace('_', '-')}" for name in _ANNOTATED.findall(text))


def _source(name: str) -> str:
    spec = importlib.util.find_spec("vllm")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    file = next((Path(place) / name for place in places if (Path(place) / name).is_file()), None)
    return "" if file is None else file.read_text(encoding="utf-8")
