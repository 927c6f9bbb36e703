"""A model's name on a hub that nobody can reach. vLLM would ask for it six times over half a minute.

    in the cache of the hub            vLLM loads it from there
    HF_HUB_OFFLINE, not in the cache   refused
    no address for the hub's host      refused, unless a proxy asks in our place
    anything else                      the hub knows

Decision: only the cache's folder and the name service are asked, never the hub. So a slow network refuses nothing, and
a name that the hub does not know is told by vLLM. Whatever loads models in another way is left alone.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from acmserve.errors import AcmError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_OTHER_PLACES = ("VLLM_USE_MODELSCOPE", "TRANSFORMERS_CACHE", "VLLM_MODEL_REDIRECT_PATH")
_REMEDY = "Name a folder with a config.json, `smollm2`, or a model that is in the cache."
_WAIT_SECONDS = 1.5


def check_hub_model(model: str, environ: Mapping[str, str]) -> None:
    """Raise AcmError for the name of a model that is neither in the cache nor to be had."""
    if not _NAME.fullmatch(model) or any(environ.get(name) for name in _OTHER_PLACES) or _is_cached(model, environ):
        return
    cache = _cache(environ)
    switch = next((name for name in _OFFLINE if environ.get(name)), "")
    if environ.get(switch, "").upper() in _TRUE:
        raise AcmError(f"no model {model!r}: {switch} is set, and it is not in the cache at {cache}. {_REMEDY}")
    host = urlsplit(environ.get("HF_ENDPOINT") or "https://huggingface.co").hostname
    if host and not urllib.request.getproxies() and _has_no_address(host):
        raise AcmError(
            f"no model {model!r}: there is no such folder, it is not in the cache at {cache}, and the hub's host "
            f"{host} has no address here. {_REMEDY}"
        )


def _is_cached(model: str, environ: Mapping[str, str]) -> bool:
    return (_cache(environ) / f"models--{model.replace('/', '--')}").is_dir()


def _cache(environ: Mapping[str, str]) -> Path:
    """Where Hugging Face keeps models, by the variables that it reads."""
    named = next((environ[name] for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE") if environ.get(name)), None)
    if named is not None:
        return _folder(named)
    if environ.get("HF_HOME"):
        return _folder(environ["HF_HOME"]) / "hub"
    return _folder(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


def _folder(text: str) -> Path:
    return Path(os.path.expandvars(text)).expanduser()


def _has_no_address(host: str) -> bool:
    """Whether the name service knows that there is none. One that does not answer in time knows nothing."""
    refused: list[bool] = []

    def ask() -> None:
        try:
            socket.getaddrinfo(host, 443)
        except socket.gaierror:
            refused.append(True)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_WAIT_SECONDS)
    return bool(refused)
