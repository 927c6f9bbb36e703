"""What is refused of a command line while nothing heavy is imported: within a second, and before an engine starts.

    flags         names that are nearly known, `--dtype`, `--config`, files of TLS
    our flags     calibration, budget, policies, precompute, observations, prices, places of session ids, embedder
    --data-dir    the sessions' files are opened, and given back
    MODEL         a path without a model, a name that no cache has and no hub can tell, a size that cannot be
    --port        a port that another process has, a socket that is there already

Decision: vLLM's parser alone reads its command line, and importing it takes seconds. So only what is plain is looked at
here, as vLLM's documentation spells it. `acmserve serve` calls some checks once more when vLLM has read the rest, a
configuration file for example. Nothing is refused that vLLM would accept.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from acmserve.context.eviction.budget_json import parse_budget
from acmserve.context.storage.shared_folder import check_data_dir
from acmserve.engine.config import SERVER_SECTION
from acmserve.errors import AcmError
from acmserve.models import smollm2
from acmserve.plan.calibration import read_calibration
from acmserve.server.app.launch.flag_names import OneLineParser, check_flag_names
from acmserve.server.app.launch.hub_model import check_hub_model
from acmserve.server.app.launch.model_size import (
    check_memory,
    check_size,
    default_cpu_kv_gib,
    read_plain_model,
    whole_number,
)
from acmserve.server.budget.budgets import load_policies
from acmserve.server.options.config import ContextConfig, flag_value
from acmserve.server.siblings.kept_sessions import check_owners
from acmserve.server.siblings.ownership import Ownership
from acmserve.server.vllm.source_text import model_dtypes
from acmserve.validation import did_you_mean, listing

BUNDLED_MODEL = "smollm2"
LOCAL_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
_ANY_WINDOW = 2**40
"""Tokens. A budget that is too large for the model is refused when its window is known."""
_TLS_FILES = ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs")
_READ = (
    *("model", "host", "port", "uds", "dtype", "max_model_len", "kv_cache_memory_bytes", "api_server_count"),
    *_TLS_FILES,
)
_HARMLESS = frozenset(
    {
        *(f"--{name.replace('_', '-')}" for name in _READ),
        *("--served-model-name", "--api-key", "--seed", "--max-num-seqs", "--enforce-eager", "--chat-template"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "--reasoning-parser", "--enable-scale-out"),
        *("--enable-log-requests", "--disable-log-stats", "--uvicorn-log-level", "--shutdown-timeout"),
    }
)
"""Flags that change nothing of a model and its KV. Beside any other one its size is left to vLLM."""


def check_command_line(ours: Namespace, rest: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
    """Refuse what cannot work. `ours` are our flags, `rest` is what vLLM will read. Raises `AcmError`."""
    check_flag_names(rest, [f"--{name.replace('_', '-')}" for name in vars(ours)])
    plain = _read_plain(rest)
    given = whole_number(plain.api_server_count)
    check_settings(ContextConfig.parse({SERVER_SECTION: context_flags(ours)}), None if plain.config else given or 1)
    _check_values(plain)
    if plain.model not in (None, BUNDLED_MODEL):
        check_model_folder(plain.model)
    if ours.calibration is not None:
        _check_calibration(ours.calibration, plain.model)
    if plain.model is not None and plain.has_plain_model:
        _check_model(plain.model, plain, environ)
    port = plain.port or (None if plain.config else str(DEFAULT_PORT))
    if plain.uds:
        check_socket(plain.uds)
    elif port is not None and not plain.headless:
        check_port(plain.host or LOCAL_HOST, _port_number(port))


def _check_values(plain: Namespace) -> None:
    """Raise AcmError for a value that vLLM would refuse only after seconds, or after its engine has started."""
    known = model_dtypes()
    if plain.dtype is not None and known and plain.dtype not in known:
        guess = did_you_mean(plain.dtype, known)
        raise AcmError(f"--dtype {plain.dtype!r} is no type of numbers; choose {listing(known)}.{guess}")
    for flag in ("config", *_TLS_FILES):
        file = getattr(plain, flag)
        if file is not None and not Path(file).is_file():
            raise AcmError(f"--{flag.replace('_', '-')} {file}: there is no such file; name one that can be read")


def _check_calibration(file: str, model: str | None) -> None:
    """Raise AcmError for a calibration that cannot be read, or is not for the model in this folder."""
    found = read_calibration(file, "--calibration")
    folder = smollm2.default_folder() if model == BUNDLED_MODEL else Path(model or "").expanduser()
    config = folder / "config.json"
    if model is not None and config.is_file():
        found.check_model(json.loads(config.read_text(encoding="utf-8")), f"--calibration {file}")


def _check_model(name: str, plain: Namespace, environ: Mapping[str, str]) -> None:
    """Raise AcmError for a model that cannot be had, and for a size that cannot be."""
    folder = smollm2.default_folder() if name == BUNDLED_MODEL else Path(name).expanduser()
    if name != BUNDLED_MODEL and not folder.exists():
        check_hub_model(name, environ)
    model = read_plain_model(folder)
    kv_memory = whole_number(plain.kv_cache_memory_bytes)
    if _is_cpu_build():
        kv_memory = _cpu_kv_memory(kv_memory, environ)
        if kv_memory is not None:
            check_memory(kv_memory)
    length = whole_number(plain.max_model_len)
    if model is not None and not environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") and (length or not plain.max_model_len):
        check_size(model, length, plain.dtype, kv_memory)


def _cpu_kv_memory(given: int | None, environ: Mapping[str, str]) -> int | None:
    """The KV cache's memory on a CPU, where the variable counts before the flag. None for one that is no number."""
    gib = environ.get("VLLM_CPU_KVCACHE_SPACE")
    if gib:
        number = whole_number(gib)
        return None if number is None else number * 2**30
    return default_cpu_kv_gib() * 2**30 if given is None else given


def _is_cpu_build() -> bool:
    try:
        return bool(version("vllm-cpu"))
    except PackageNotFoundError:
        return False


def context_flags(ours: Namespace) -> dict[str, Any]:
    """The section of the context layer that our flags make, of what was given."""
    return {f.name: value for f in fields(ContextConfig) if (value := vars(ours).get(f.name)) is not None}


def check_settings(config: ContextConfig, num_servers: int | None = 1) -> None:
    """Read every setting, and open the sessions' files. Raises `AcmError`.

    `num_servers` is how many API servers there will be. None: not known yet, so no file is opened.
    """
    budget = flag_value(config.budget, "--budget") if config.budget else None
    load_policies(config.eviction_policy, budget)
    if budget is not None:
        parse_budget(budget, _ANY_WINDOW, "--budget")
    _ = config.precompute_options, config.observation_rule, config.token_prices
    if config.embedder:
        from acmserve.server.models.embedder import parse_embedder

        parse_embedder(config.embedder)
    if config.data_dir and num_servers is not None:
        check_data_dir(Path(config.data_dir), num_servers, config.session_limits)
        check_owners(Path(config.data_dir), Ownership(num_servers, config.infer_sessions))


def check_model_folder(model: str) -> None:
    """Raise AcmError for a path without a model. A name on a hub is nothing that can be checked here."""
    folder = Path(model).expanduser()
    if not model.startswith(("/", "./", "../", "~")) and not folder.is_dir():
        return
    remedy = "Name a folder with a config.json, a model of Hugging Face, or `smollm2`."
    if not folder.exists():
        raise AcmError(f"no model at {model}: there is no such folder. {remedy}")
    if folder.is_dir() and not any((folder / name).is_file() for name in ("config.json", "params.json")):
        raise AcmError(f"no model at {model}: the folder has no config.json. {remedy}")


def check_socket(path: str) -> None:
    """Raise AcmError for a Unix socket that cannot be made: vLLM makes it, and takes none that is there."""
    if not Path(path).absolute().parent.is_dir():
        raise AcmError(f"--uds {path}: there is no folder for the socket; make the folder, or name another one")
    if Path(path).exists():
        raise AcmError(f"--uds {path} is there already; remove it where no server uses it, or name another one")


def check_port(host: str | None, port: int) -> None:
    """Raise AcmError where nobody can listen. The port is free again when this returns."""
    where = f"{host or 'any address'}, port {port}"
    try:
        with socket.socket(socket.AF_INET6 if ":" in (host or "") else socket.AF_INET) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host or "", port))
            sock.listen()
    except OverflowError:
        raise AcmError(f"--port {port} is no port; ports go from 1 to 65535") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AcmError(f"port {port} is in use by another process; --port names another one") from None
        raise AcmError(f"cannot listen on {where}: {error.strerror}; see --host and --port") from None


def _port_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise AcmError(f"--port {text!r} is no port; ports go from 1 to 65535") from None


def _read_plain(rest: Sequence[str]) -> Namespace:
    """The flags of vLLM that stand in the command line as vLLM's documentation spells them. None: not there.

    `config` is a file that vLLM reads. `has_plain_model`: nothing is said that could change the model.
    """
    words = [_dashed(word) for word in rest]
    parser = OneLineParser(prog="acmserve serve", add_help=False, allow_abbrev=False)
    for name in _READ:
        parser.add_argument(f"--{name.replace('_', '-')}")
    parser.add_argument("--headless", action="store_true")
    plain, _ = parser.parse_known_args(words)
    plain.config = next((words[i + 1] for i, word in enumerate(words[:-1]) if word == "--config"), None)
    plain.has_plain_model = all(word.partition("=")[0] in _HARMLESS for word in words if word.startswith("-"))
    if rest and not rest[0].startswith("-"):
        plain.model = rest[0]
    return plain


def _dashed(word: str) -> str:
    name, mark, value = word.partition("=")
    return f"{name.replace('_', '-')}{mark}{value}" if name.startswith("--") else word
