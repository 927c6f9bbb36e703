"""The command line of `acmserve serve`, up to the point where vLLM takes over."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from importlib.metadata import entry_points
from pathlib import Path
from typing import get_args

import pytest
from vllm.config import KVTransferConfig
from vllm.config.model import ModelDType
from vllm.utils.argparse_utils import FlexibleArgumentParser

from acmserve.engine.config import CONNECTOR_NAME, EngineConfig
from acmserve.errors import AcmError
from acmserve.models.smollm2 import TOOLS_TEMPLATE, prepare
from acmserve.seams import load
from acmserve.server.app.access import check_response_store, listen_locally
from acmserve.server.app.flags import build_parser
from acmserve.server.app.launch.flag_names import check_flag_names
from acmserve.server.app.serve import (
    fill_cpu_defaults,
    main,
    merge_kv_transfer_config,
    name_plugin,
    parse_vllm_flags,
    resolve_model,
    run_command,
)
from acmserve.server.app.startup import open_identifier
from acmserve.server.options.config import ContextConfig
from acmserve.server.vllm.seams import ARG_PARSER
from acmserve.server.vllm.source_text import model_dtypes, vllm_flags


def test_help_teaches_our_flags_and_points_to_those_of_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smollm2", "--help"]) == 0
    text = capsys.readouterr().out
    for word in (
        "--fidelity",
        "--max-sessions",
        "--min-move-tokens",
        "--help=all",
        "session_id",
        "X-Session-ID",
        "curl",
    ):
        assert word in text


def test_our_flags_are_taken_out_and_the_rest_keeps_its_order() -> None:
    argv = ["--port", "81", "smollm2", "--fidelity=reuse", "-tp", "2", "--max_sessions", "9", "--max-model-len", "4k"]
    ours, rest = build_parser().parse_known_args(argv)
    assert (ours.fidelity, ours.max_sessions, ours.min_move_tokens) == ("reuse", 9, None)
    assert rest == ["--port", "81", "smollm2", "-tp", "2", "--max-model-len", "4k"]


@pytest.mark.parametrize("flags", [["--fidelity", "best"], ["--max-sessions", "0"], ["--min-move-tokens", "-3"]])
def test_bad_value_of_our_flags_is_named(flags: list[str]) -> None:
    with pytest.raises(AcmError, match=f"^{flags[0]}: .*'{flags[1]}'.*acmserve serve --help"):
        build_parser().parse_known_args(["smollm2", *flags])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tensor-paralel-size", "2"], "^unknown flag --tensor-paralel-size. Did you mean --tensor-parallel-size?"),
        (["--a-flag-of-nobody"], "^unknown flag --a-flag-of-nobody. `acmserve serve --help`"),
        (["--max-num-seqs", "many"], "^--max-num-seqs: invalid int value: 'many'"),
        (["--config", "serve.toml"], "^Config file must be of a yaml/yml type. toml supplied. "),
    ],
)
def test_what_vllm_refuses_of_its_flags_is_one_line(flags: list[str], said: str) -> None:
    with pytest.raises(AcmError, match=said) as refused:
        parse_vllm_flags(["/models/m", *flags])
    assert "\n" not in str(refused.value)


def test_no_flag_of_vllm_is_strange_to_the_text_that_is_read_before_it() -> None:
    parser = load(ARG_PARSER)(FlexibleArgumentParser(prog="acmserve serve"))
    known = vllm_flags()
    flags = [flag for flag in parser._option_string_actions if flag.startswith("--")]
    assert len(flags) > 200
    assert [flag for flag in flags if flag not in known and f"--{flag.removeprefix('--no-')}" not in known] == []
    assert set(model_dtypes()) == set(get_args(ModelDType))
    check_flag_names(flags, ["--fidelity"])
    with pytest.raises(AcmError, match=r"Did you mean --fidelity\?"):
        check_flag_names(["--fidelty"], ["--fidelity"])


def test_settings_that_vllm_refuses_are_one_line() -> None:
    class Command:
        """One that reads its settings as vLLM does."""

        def validate(self, args: Namespace) -> None:
            """Flags are well."""

        def cmd(self, args: Namespace) -> None:
            """Read a setting of vLLM's that is not."""
            KVTransferConfig(**vars(args))

    with pytest.raises(AcmError, match=r"^vLLM refuses these settings: .*kv_role") as refused:
        run_command(Command(), Namespace(kv_connector="Mine"))
    assert "\n" not in str(refused.value)


def test_flags_become_the_connector_configuration() -> None:
    ours = Namespace(fidelity="reuse", max_sessions=9, min_move_tokens=64, calibration="c.json")
    config = merge_kv_transfer_config(None, ours)
    assert (config.kv_connector, config.kv_role) == (CONNECTOR_NAME, "kv_both")
    assert config.kv_connector_extra_config == {
        "default_fidelity": "reuse",
        "max_sessions": 9,
        "min_move_tokens": 64,
        "calibration": "c.json",
    } | {"context": {"max_sessions": 9}}


def test_flags_win_over_the_users_configuration_of_our_connector() -> None:
    given = KVTransferConfig(
        kv_connector=CONNECTOR_NAME,
        kv_role="kv_both",
        kv_connector_extra_config={"max_sessions": 3, "max_source_mib": 5},
    )
    config = merge_kv_transfer_config(
        given, Namespace(fidelity=None, max_sessions=9, min_move_tokens=None, calibration=None)
    )
    assert config.kv_connector_extra_config == {"max_sessions": 9, "max_source_mib": 5, "context": {"max_sessions": 9}}


def test_users_settings_without_a_connector_are_for_ours() -> None:
    given = KVTransferConfig(kv_connector_extra_config={"max_source_mib": 5})
    config = merge_kv_transfer_config(
        given, Namespace(fidelity="reuse", max_sessions=None, min_move_tokens=None, calibration=None)
    )
    assert (config.kv_connector, config.kv_role) == (CONNECTOR_NAME, "kv_both")
    assert config.kv_connector_extra_config == {"max_source_mib": 5, "default_fidelity": "reuse"}


@pytest.mark.parametrize(
    ("connector", "reason"),
    [
        ("OffloadingConnector", "another store would hand"),
        ("LMCacheConnectorV1", "LMCache stores KV under its token ids"),
        ("NixlConnector", "NIXL hands KV to another engine"),
    ],
)
def test_another_connector_is_refused_by_name(connector: str, reason: str) -> None:
    given = KVTransferConfig(kv_connector=connector, kv_role="kv_both")
    with pytest.raises(AcmError, match=f"^--kv-transfer-config names the connector '{connector}'.*because {reason}"):
        merge_kv_transfer_config(
            given, Namespace(fidelity=None, max_sessions=None, min_move_tokens=None, calibration=None)
        )


def test_plugin_is_named_and_no_general_plugin_is_lost() -> None:
    environ: dict[str, str] = {}
    name_plugin(environ)
    names = environ["VLLM_PLUGINS"].split(",")
    assert "acmserve" in names
    assert {ep.name for ep in entry_points(group="vllm.general_plugins")} <= set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("named", "expected"), [("mine", "mine,acmserve"), ("acmserve,mine", "acmserve,mine"), ("", "acmserve")]
)
def test_users_list_of_plugins_is_kept(named: str, expected: str) -> None:
    environ = {"VLLM_PLUGINS": named}
    name_plugin(environ)
    assert environ["VLLM_PLUGINS"] == expected


def test_cpu_defaults_are_filled_in_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    environ: dict[str, str] = {}
    args = Namespace(dtype=None, enforce_eager=None, kv_cache_memory_bytes=None)
    fill_cpu_defaults(args, environ)
    assert (args.dtype, args.enforce_eager) == ("float32", True)
    assert 1 <= int(environ["VLLM_CPU_KVCACHE_SPACE"]) <= 4
    said = capsys.readouterr().err
    assert all(word in said for word in ("float32", "--enforce-eager", "VLLM_CPU_KVCACHE_SPACE"))


def test_cpu_defaults_leave_what_the_user_chose(capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"VLLM_CPU_KVCACHE_SPACE": "2"}
    args = Namespace(dtype="auto", enforce_eager=False, kv_cache_memory_bytes=None)
    fill_cpu_defaults(args, environ)
    assert (args.dtype, args.enforce_eager, environ) == ("auto", False, {"VLLM_CPU_KVCACHE_SPACE": "2"})
    assert capsys.readouterr().err == ""


def test_vllm_reads_its_own_flags_and_configuration_files(tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text("port: 8123\n")
    args = parse_vllm_flags(
        [
            "/models/m",
            *("--config", str(config)),
            *("--max_num_seqs", "3"),
            *("--kv-transfer-config.kv_connector", "Other"),
            *("--kv-transfer-config.kv_role", "kv_both"),
        ]
    )
    assert (args.model, args.port, args.max_num_seqs) == ("/models/m", 8123, 3)
    assert args.kv_transfer_config.kv_connector == "Other"


@pytest.mark.parametrize(
    ("flags", "host"),
    [
        ([], "127.0.0.1"),
        (["--host", "0.0.0.0"], "0.0.0.0"),
        (["--api-key", "k"], None),
        (["--uds", "/run/acm.sock"], None),
    ],
    ids=["no key", "a host", "a key", "a socket"],
)
def test_a_server_without_a_key_listens_on_this_machine_only(
    flags: list[str], host: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    args = parse_vllm_flags(["/models/m", *flags])
    capsys.readouterr()
    listen_locally(args, lambda text: print(text, file=sys.stderr))
    assert args.host == host
    said = capsys.readouterr().err
    assert all(word in said for word in ("127.0.0.1", "--api-key", "--host 0.0.0.0")) == (not flags)


def test_a_key_in_the_environment_is_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "k")
    args = parse_vllm_flags(["/models/m"])
    listen_locally(args, print)
    assert args.host is None


def test_several_keys_have_no_store_of_responses_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever names the id of a stored response reads it, and clients may choose the id. One key reads its own."""

    def check(*keys: str) -> None:
        check_response_store(parse_vllm_flags(["/models/m", *(["--api-key", *keys] if keys else [])]))

    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.setenv("VLLM_ENABLE_RESPONSES_API_STORE", "1")
    check()
    check("a")
    check("a", "a")
    with pytest.raises(AcmError, match="several keys; unset it, or start a server for each key"):
        check("a", "b")
    monkeypatch.setenv("VLLM_ENABLE_RESPONSES_API_STORE", "0")
    check("a", "b")


def test_context_flags_become_the_section_of_the_server() -> None:
    ours, rest = build_parser().parse_known_args(
        ["smollm2", "--data-dir", "d", "--session-hours=1.5", "--embedder", "http://u"]
    )
    assert rest == ["smollm2"]
    config = merge_kv_transfer_config(None, ours)
    assert config.kv_connector_extra_config == {
        "context": {"data_dir": "d", "session_hours": 1.5, "embedder": "http://u"}
    }
    assert EngineConfig.parse(config.kv_connector_extra_config) == EngineConfig()


def test_the_places_of_session_ids_have_flags_that_are_checked_at_the_start() -> None:
    flags = ["smollm2", "--session-from", "header:x-run,session_id", "--infer-sessions"]
    ours, rest = build_parser().parse_known_args(flags)
    assert rest == ["smollm2"]
    config = ContextConfig.parse(merge_kv_transfer_config(None, ours).kv_connector_extra_config)
    identifier = open_identifier(config)
    assert [source.name for source in identifier.sources] == ["x-run", "session_id"]
    assert identifier.identify({"messages": [{"role": "user", "content": "Hello."}]}, {}, "") is not None
    ours, _ = build_parser().parse_known_args(["smollm2", "--session-from", "sesion_id"])
    with pytest.raises(AcmError, match="--session-from: has no place 'sesion_id'"):
        merge_kv_transfer_config(None, ours)


def test_bad_context_setting_is_named() -> None:
    ours, _ = build_parser().parse_known_args(["smollm2", "--session-hours", "-1"])
    with pytest.raises(AcmError, match=r"context\.session_hours: must be positive"):
        merge_kv_transfer_config(None, ours)


def test_bundled_model_is_served_under_its_word_and_with_tools() -> None:
    args = Namespace(model_tag="smollm2", model=None, served_model_name=None, chat_template=None, tool_call_parser=None)
    resolve_model(args)
    assert args.model == str(prepare())
    assert args.served_model_name == ["smollm2"]
    assert (args.chat_template, args.enable_auto_tool_choice) == (str(TOOLS_TEMPLATE), True)


def test_missing_model_is_said() -> None:
    with pytest.raises(AcmError, match="acmserve serve smollm2"):
        resolve_model(Namespace(model_tag=None, model=None, served_model_name=None))


def test_the_bounds_of_the_file_have_flags(tmp_path: Path) -> None:
    ours, _ = build_parser().parse_known_args(["m", "--max-stored-sessions", "7", "--max-stored-mib=3"])
    config = merge_kv_transfer_config(None, ours)
    limits = ContextConfig.parse(config.kv_connector_extra_config).session_limits
    assert (limits.max_stored_sessions, limits.max_stored_bytes) == (7, 3 * 2**20)


def test_a_suite_of_ones_own_is_checked_before_vllm_is_imported(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text('{"version": 1, "name": "mine", "tools": [{"operation": "fuse"}]}')
    code = (
        "import sys; from acmserve.cli import main\n"
        f"print(main(['serve', 'smollm2', '--suite', {str(tmp_path / 'mine.json')!r}]), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"
    assert done.stderr.endswith("mine.json: tools[0].name: is missing.\n")
