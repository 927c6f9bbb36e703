"""`acmserve serve MODEL`: vLLM's own OpenAI-compatible server, with sessions switched on.

The command line is vLLM's, plus the flags below. It is vLLM's parser that reads it (configuration files, dotted keys
and underscores included) and vLLM's serve command that runs. This module only fills in what the user left open. So
every other flag means exactly what vLLM's documentation says. The console script `vllm serve` is not used: it looks for
the metadata of a distribution named `vllm`, which CPU builds do not have.

Refused: another KV connector beside ours. One that stores KV by token hash would hand moved KV to requests that asked
for exact tokens. The lineage of a block is not in that hash.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterable, MutableMapping, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from acmserve.engine.config import CONNECTOR_NAME, CONNECTOR_NAMES, SERVER_SECTION
from acmserve.errors import AcmError
from acmserve.seams import load
from acmserve.server.app.access import check_response_store, listen_locally
from acmserve.server.app.early_checks import (
    BUNDLED_MODEL,
    check_command_line,
    check_model_folder,
    check_port,
    check_settings,
    context_flags,
)
from acmserve.server.app.flags import build_parser
from acmserve.server.app.launch.api_servers import api_servers_folder, settle_api_servers
from acmserve.server.app.launch.default_precompute import settle_default_precompute
from acmserve.server.app.launch.flag_names import OneLineParser, one_line, reason_of
from acmserve.server.app.launch.model_size import default_cpu_kv_gib
from acmserve.server.options.config import ContextConfig
from acmserve.server.vllm.model_names import served_names
from acmserve.server.vllm.seams import ARG_PARSER, CLI_ENVIRONMENT

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig

PLUGIN = "acmserve"
_ENDPOINT_GROUP = "vllm.endpoint_plugins"


def main(argv: Sequence[str]) -> int:
    """Serve until stopped. Raises AcmError for a command line that cannot work."""
    parser = build_parser()
    if "-h" in argv or "--help" in argv:
        parser.print_help()
        return 0
    ours, rest = parser.parse_known_args(argv)
    if not any(word.startswith("--help=") for word in rest):
        check_command_line(ours, rest)
    name_plugin(os.environ)

    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.logger import configure_logging_from_args
    from vllm.platforms import current_platform

    from acmserve.server.app.engine_death import ENGINE_DEATH

    load(CLI_ENVIRONMENT)()
    args = parse_vllm_flags(rest)
    check_model_folder(args.model)
    add_aliases(args, ours.model_alias or (), os.environ)
    args.kv_transfer_config = merge_kv_transfer_config(args.kv_transfer_config, ours)
    check_response_store(args)
    listen_locally(args, _say)
    config = ContextConfig.parse(args.kv_transfer_config.kv_connector_extra_config)
    settle_api_servers(args, config, _say)
    settle_default_precompute(args, current_platform.is_cpu(), _say)
    check_settings(config, args.api_server_count or 1)
    if args.uds is None and not args.headless:
        check_port(args.host, args.port)
    configure_logging_from_args(args)
    with api_servers_folder(args):
        run_command(ServeSubcommand(), args)
    if not ENGINE_DEATH.has_died:
        return 0
    kept = " The sessions in --data-dir are kept." if ours.data_dir else ""
    _say(f"the engine died, see the first error above.{kept} Start the server again.")
    return 1


def run_command(command: Any, args: Namespace) -> None:
    """Run a command of vLLM. Raises AcmError in one line for settings that vLLM refuses."""
    try:
        command.validate(args)
    except (TypeError, ValueError) as error:
        raise AcmError(f"vLLM refuses these flags: {reason_of(error)}") from error
    try:
        command.cmd(args)
    except ValidationError as error:
        raise AcmError(f"vLLM refuses these settings: {reason_of(error)}") from error


def name_plugin(environ: MutableMapping[str, str]) -> None:
    """Name our endpoint plugin in VLLM_PLUGINS, which loads it, and keep every plugin that would load without us.

    vLLM loads endpoint plugins only by name, and VLLM_PLUGINS, once set, restricts all groups by name
    (vllm/plugins/__init__.py:44,93). A user's own list is kept and ours added. An endpoint plugin of somebody else is
    named only if a plugin of another group has the same name. Then it is said.
    """
    named = environ.get("VLLM_PLUGINS")
    if named is not None:
        names = [name for name in named.split(",") if name]
    else:
        groups = {group for group in entry_points().groups if group.startswith("vllm.")}
        names = _names(groups - {_ENDPOINT_GROUP})
        exposed = set(names) & set(_names({_ENDPOINT_GROUP})) - {PLUGIN}
        if exposed:
            _say(f"endpoint plugins loaded too: {', '.join(sorted(exposed))}; set VLLM_PLUGINS to choose")
    environ["VLLM_PLUGINS"] = ",".join(dict.fromkeys([*names, PLUGIN]))


def parse_vllm_flags(argv: Sequence[str]) -> Namespace:
    """Parse vLLM's command line and settle the model and, on a CPU, what the user left open."""
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    on_cpu = current_platform.is_cpu()

    class ServeParser(FlexibleArgumentParser, OneLineParser):
        """vLLM's parser, whose errors are one line."""

    parser = load(ARG_PARSER)(ServeParser(prog="acmserve serve", usage="acmserve serve MODEL [flags]"))
    parser.set_defaults(model=None, enable_prompt_tokens_details=None)
    if on_cpu:
        parser.set_defaults(dtype=None, enforce_eager=None)
    try:
        args: Namespace = parser.parse_args(list(argv))
    except (ValueError, AssertionError, OSError) as error:
        raise AcmError(one_line(reason_of(error))) from error
    if args.enable_prompt_tokens_details is None:
        args.enable_prompt_tokens_details = True
    if on_cpu:
        fill_cpu_defaults(args, os.environ)
    resolve_model(args)
    return args


def fill_cpu_defaults(args: Namespace, environ: MutableMapping[str, str]) -> None:
    """Fill in what was not given (`dtype` and `enforce_eager` are None, VLLM_CPU_KVCACHE_SPACE is unset), and say so.

    float32: bfloat16 answers wrongly on CPUs with AMX. The KV cache gets 4 GiB, at most a quarter of the memory.
    """
    said = []
    if args.dtype is None:
        args.dtype = "float32"
        said.append("--dtype float32")
    if args.enforce_eager is None:
        args.enforce_eager = True
        said.append("--enforce-eager")
    if not environ.get("VLLM_CPU_KVCACHE_SPACE") and args.kv_cache_memory_bytes is None:
        environ["VLLM_CPU_KVCACHE_SPACE"] = str(default_cpu_kv_gib())
        said.append(f"VLLM_CPU_KVCACHE_SPACE={environ['VLLM_CPU_KVCACHE_SPACE']} (GiB)")
    if said:
        _say(f"on this CPU, unless you say otherwise: {', '.join(said)}")


def resolve_model(args: Namespace) -> None:
    """Settle `args.model`. The word `smollm2` becomes the bundled model's folder, served under that name.

    It is served with tools, which its own chat template does not know.
    """
    if args.model_tag is not None:
        args.model = args.model_tag
    if args.model is None:
        raise AcmError("no model: name one, for example `acmserve serve smollm2`")
    if args.model == BUNDLED_MODEL:
        from acmserve.models.smollm2 import TOOLS_TEMPLATE, prepare

        args.model = str(prepare(progress=_say))
        args.model_tag = args.model
        args.served_model_name = args.served_model_name or [BUNDLED_MODEL]
        if args.chat_template is None:
            args.chat_template = str(TOOLS_TEMPLATE)
        if args.tool_call_parser is None:
            args.enable_auto_tool_choice, args.tool_call_parser = True, "hermes"


def add_aliases(args: Namespace, aliases: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Serve the model under more names. `*=MODEL` is vLLM's own switch, which takes every name as that of the model.

    Raises AcmError for a text that is no `NAME=MODEL`, and for a model that is not served.
    """
    served = served_names(args)
    for text in aliases:
        name, _, model = text.partition("=")
        if not name or not model:
            raise AcmError(f"--model-alias {text!r} is no NAME=MODEL, for example claude-haiku-4-5={served[0]}")
        if model not in served:
            raise AcmError(
                f"--model-alias {text}: {model} is not served. Served are {', '.join(served)}. "
                "An adapter has a name of its own, --lora-modules gives it."
            )
        if name == "*":
            environ["VLLM_SKIP_MODEL_NAME_VALIDATION"] = "1"
        elif name not in served:
            served.append(name)
    if aliases:
        args.served_model_name = served


def merge_kv_transfer_config(given: KVTransferConfig | None, ours: Namespace) -> KVTransferConfig:
    """Return the connector configuration: the user's, if it names our connector or none, with our flags on top.

    Raises AcmError when the user's names another connector.
    """
    from vllm.config import KVTransferConfig

    extra: dict[str, Any] = {
        key: value
        for key, value in (
            ("default_fidelity", ours.fidelity),
            ("max_sessions", ours.max_sessions),
            ("min_move_tokens", ours.min_move_tokens),
            ("calibration", ours.calibration),
        )
        if value is not None
    }
    context = context_flags(ours)
    if context:
        before = (given.kv_connector_extra_config if given is not None else {}).get(SERVER_SECTION, {})
        extra[SERVER_SECTION] = before | context
    precompute = ContextConfig.parse(extra).precompute_options
    if precompute is not None:
        extra["precompute_max_pool_share"] = precompute.max_pool_share
    if given is None:
        return KVTransferConfig(kv_connector=CONNECTOR_NAME, kv_role="kv_both", kv_connector_extra_config=extra)
    if given.kv_connector is None:
        given.kv_connector, given.kv_role = CONNECTOR_NAME, "kv_both"
    if given.kv_connector not in CONNECTOR_NAMES:
        raise AcmError(
            f"--kv-transfer-config names the connector {given.kv_connector!r}; acmserve needs {CONNECTOR_NAME} alone, "
            f"because {_why_not(given.kv_connector)}. Leave the flag out, or start plain vLLM."
        )
    given.kv_connector_extra_config.update(extra)
    return given


def _why_not(connector: str) -> str:
    """What keeps another connector from standing beside ours."""
    if "lmcache" in connector.lower():
        return "LMCache stores KV under its token ids, and would hand moved KV to exact requests"
    if "nixl" in connector.lower():
        return "NIXL hands KV to another engine, where nothing is known of what was moved"
    return "another store would hand moved KV to exact requests"


def _names(groups: Iterable[str]) -> list[str]:
    return sorted({ep.name for group in groups for ep in entry_points(group=group)})


def _say(line: str) -> None:
    print(f"acmserve: {line}", file=sys.stderr, flush=True)
