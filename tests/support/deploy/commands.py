"""Command lines of `acmserve serve` that `deploy/` starts, by where they stand."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from acmserve.server.app.flags import build_parser
from acmserve.server.app.launch.flag_names import check_flag_names
from acmserve.server.vllm.source_text import vllm_flags
from tests.support.deploy.dockerfile import read_dockerfile
from tests.support.deploy.files import DEPLOY, read_yaml

DOCKERFILES = ("cpu.Dockerfile", "gpu.Dockerfile")
COMPOSE_FILES = ("compose.yaml", "compose.gpu.yaml")
UNIT, CHART = "acmserve.service", "production-stack.yaml"


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """File, and the words behind `acmserve serve`."""
    for name in DOCKERFILES:
        said = {one.name: one.words for one in read_dockerfile((DEPLOY / name).read_text(encoding="utf-8"))}
        assert said["ENTRYPOINT"] == ["acmserve", "serve"]
        yield name, said["CMD"]
    for name in COMPOSE_FILES:
        yield name, read_yaml(name)["services"]["acmserve"]["command"]
    words = shlex.split(unit_setting("ExecStart"))
    assert words[0].endswith("/acmserve")
    assert words[1] == "serve"
    yield UNIT, words[2:]
    spec = read_yaml(CHART)["servingEngineSpec"]
    for model in spec["modelSpec"]:
        yield CHART, chart_command(model, spec["containerPort"])


def chart_command(model: dict[str, Any], port: int) -> list[str]:
    """What the chart's template writes behind `vllm serve`, of the settings that our values have."""
    config = model["vllmConfig"]
    assert set(config) <= {"enablePrefixCaching", "maxModelLen", "extraArgs"}, "a setting that is not written here"
    caching = "--enable-prefix-caching" if config.get("enablePrefixCaching") else "--no-enable-prefix-caching"
    words = [model["modelURL"], "--host", "0.0.0.0", "--port", str(port), caching]
    return [*words, "--max-model-len", str(config["maxModelLen"]), *config["extraArgs"]]


def unit_setting(name: str) -> str:
    """A setting of the systemd unit."""
    lines = (DEPLOY / UNIT).read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}="))
    return line.partition("=")[2]


def find_unknown(words: Sequence[str]) -> list[str]:
    """Flags that neither acmserve nor vLLM has. Raises what `acmserve serve` raises for those that are nearly known."""
    ours, rest = build_parser().parse_known_args(list(words))
    check_flag_names(rest, [f"--{name.replace('_', '-')}" for name in vars(ours)])
    flags = [word.partition("=")[0] for word in rest if word.startswith("--")]
    return [flag for flag in flags if not {flag, flag.replace("--no-", "--", 1)} & vllm_flags()]
