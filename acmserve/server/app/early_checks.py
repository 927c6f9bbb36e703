"""What is refused of a command line while nothing heavy is imported: within a second, and before an engine starts.

    our flags     budget, policies, precompute, observations, prices, places of session ids, embedder
    --data-dir    the sessions' file is opened once, and given back
    MODEL         a path without a model
    --port        a port that another process has

Decision: vLLM's parser alone reads its command line, and importing it takes seconds. So only what is plain is looked at
here: MODEL in front of all flags, `--model`, `--host` and `--port`. `acmserve serve` calls the same checks once more
when vLLM has read the rest, a configuration file for example. It knows neither vLLM nor the model's window.
"""

from __future__ import annotations

import argparse
import errno
import socket
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from acmserve.context.eviction.budget_json import parse_budget
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.sqlite import Archive
from acmserve.engine.config import SERVER_SECTION
from acmserve.errors import AcmError
from acmserve.server.budget.budgets import load_policies
from acmserve.server.options.config import ContextConfig, flag_value

BUNDLED_MODEL = "smollm2"
LOCAL_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
_ANY_WINDOW = 2**40
"""Tokens. A budget that is too large for the model is refused when its window is known."""


def check_command_line(ours: Namespace, rest: Sequence[str]) -> None:
    """Refuse what cannot work. `ours` are our flags, `rest` is what vLLM will read. Raises `AcmError`."""
    plain = _read_plain(rest)
    if plain.model not in (None, BUNDLED_MODEL):
        check_model_folder(plain.model)
    check_settings(ContextConfig.parse({SERVER_SECTION: context_flags(ours)}))
    port = plain.port or (None if plain.config else str(DEFAULT_PORT))
    if port is not None and port.isdecimal() and not plain.uds and not plain.headless:
        check_port(plain.host or LOCAL_HOST, int(port))


def context_flags(ours: Namespace) -> dict[str, Any]:
    """The section of the context layer that our flags make, of what was given."""
    return {f.name: value for f in fields(ContextConfig) if (value := vars(ours).get(f.name)) is not None}


def check_settings(config: ContextConfig) -> None:
    """Read every setting once, and open the sessions' file once. Raises `AcmError`."""
    budget = flag_value(config.budget, "--budget") if config.budget else None
    load_policies(config.eviction_policy, budget)
    if budget is not None:
        parse_budget(budget, _ANY_WINDOW, "--budget")
    _ = config.precompute_options, config.observation_rule, config.token_prices
    if config.embedder:
        from acmserve.server.models.embedder import parse_embedder

        parse_embedder(config.embedder)
    if config.data_dir:
        SessionStore(config.session_limits, Archive(Path(config.data_dir))).close()


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


def _read_plain(rest: Sequence[str]) -> Namespace:
    """The flags of vLLM that stand in the command line as vLLM's documentation spells them. None: not there."""
    parser = argparse.ArgumentParser(prog="acmserve serve", add_help=False, allow_abbrev=False)
    for flag in ("--model", "--host", "--port", "--uds", "--config"):
        parser.add_argument(flag)
    parser.add_argument("--headless", action="store_true")
    plain, _ = parser.parse_known_args(list(rest))
    if rest and not rest[0].startswith("-"):
        plain.model = rest[0]
    return plain
