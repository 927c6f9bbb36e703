"""What is known of the images without a build: sources, versions, users, commands, and `vllm` inside of them."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from acmserve.errors import AcmError
from acmserve.server.app.early_checks import BUNDLED_MODEL
from acmserve.server.app.flags import build_parser
from acmserve.server.routes.health import HEALTH_PATH
from tests.support.deploy.commands import CHART, DOCKERFILES, command_lines, find_unknown
from tests.support.deploy.dockerfile import Instruction, read_dockerfile
from tests.support.deploy.files import DEPLOY
from tests.support.docs.pages import ROOT

COMMANDS = list(command_lines())
IGNORED = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()


def instructions(name: str) -> list[Instruction]:
    return read_dockerfile((DEPLOY / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "words"), COMMANDS)
def test_every_command_line_is_one_that_the_server_reads(name: str, words: list[str]) -> None:
    assert find_unknown(words) == []
    assert "--no-enable-prefix-caching" not in words, "moves need the prefix cache"
    if name not in ("acmserve.service",):
        assert words[words.index("--host") + 1] == "0.0.0.0", "a port of a container is reached from outside"


@pytest.mark.parametrize(("name", "words"), COMMANDS)
def test_every_server_reads_tool_calls(name: str, words: list[str]) -> None:
    """The bundled model has its parser without a flag. Requests with tools to any other one are refused without."""
    _, rest = build_parser().parse_known_args(words)
    if rest[0] != BUNDLED_MODEL:
        assert "--enable-auto-tool-choice" in rest, name
        assert rest[rest.index("--tool-call-parser") + 1] == "hermes", "the calls of Qwen3 are of that form"


def test_a_misspelt_flag_is_found() -> None:
    with pytest.raises(AcmError, match="--data-dir"):
        find_unknown(["m", "--data-dri", "x"])
    assert find_unknown(["m", "--quux", "x"]) == ["--quux"]
    assert {name for name, _ in COMMANDS} >= {CHART, *DOCKERFILES}


def test_a_stage_that_installs_packages_has_what_the_installation_asks_for() -> None:
    stages = "\n".join(f"{one.name} {one.text}" for one in instructions("cpu.Dockerfile")).split("FROM ")
    (installing,) = [stage for stage in stages if "install.sh packages" in stage]
    asked = (ROOT / "requirements/install.sh").read_text(encoding="utf-8")
    needed = set(re.findall(r"apt-get install ([\w+-]+)", asked)) - {"python3-dev", "python3-venv"}
    assert needed == {"g++", "libnuma1"}, "the image of Python has its headers and venv"
    assert needed <= set(installing.split())


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_is_made_of_what_is_there(name: str) -> None:
    found = instructions(name)
    stages = {one.words[2] for one in found if one.name == "FROM" and len(one.words) == 3}
    for one in (one for one in found if one.name == "COPY"):
        if "from" in one.flags:
            assert one.flags["from"] in stages
            continue
        for source in one.words[:-1]:
            assert (ROOT / source).exists(), source
            assert not is_ignored(source.rstrip("/")), source
    for script in re.findall(r"^\s*([\w/]+\.sh) (\w+)", "\n".join(one.text for one in found), re.MULTILINE):
        assert (ROOT / script[0]).exists()
        assert f"\n    {script[1]}) " in (ROOT / script[0]).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_runs_as_nobody_and_says_how_it_is(name: str) -> None:
    last = [one for one in instructions(name) if one.stage == instructions(name)[-1].stage]
    said = {one.name: one.text for one in last}
    names = [one.name for one in last]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert f"useradd --uid 10001 --create-home --home-dir /data {said['USER']}" in " ".join(one.text for one in last)
    assert f":{said['EXPOSE']}{HEALTH_PATH}'" in said["HEALTHCHECK"]
    assert said["VOLUME"] == "/data"


def test_the_images_have_the_versions_that_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (pin,) = (one for one in project["optional-dependencies"]["gpu"] if one.startswith("vllm=="))
    (base,) = (one.words[0] for one in instructions("gpu.Dockerfile") if one.name == "FROM")
    assert base == f"vllm/vllm-openai:v{pin.removeprefix('vllm==')}"
    bases = {one.words[0] for one in instructions("cpu.Dockerfile") if one.name == "FROM"}
    assert bases == {"python:3.11-slim-bookworm"}, "one Python for both stages, which the virtual environment names"
    assert project["requires-python"].startswith(">=3.11,")


def is_ignored(path: str) -> bool:
    """Whether the build does not see a path of the checkout. `**/x` and `x` are the patterns that are used."""
    parts = Path(path).parts
    return any(
        any(fnmatch(part, pattern.removeprefix("**/")) for part in parts)
        if pattern.startswith("**/")
        else fnmatch("/".join(parts[: len(Path(pattern).parts)]), pattern)
        for pattern in IGNORED
    )


def test_the_build_sees_the_product_and_no_more() -> None:
    seen = ["acmserve/cli/serve.py", "csrc/module.cpp", "kernels/ops/layout.py", "benchmarks/harness/engine.py"]
    assert [path for path in [*seen, "setup.py", "README.md", "LICENSE"] if is_ignored(path)] == []
    hidden = [".git/config", ".venv/bin/python", "tests/conftest.py", "acmserve/_native.so", "acmserve/__pycache__/x"]
    assert [path for path in hidden if not is_ignored(path)] == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["serve", "a model", "--port", "1"], "acmserve\nserve\na model\n--port\n1\nunset\n"),
        (["chat", "x"], "python3\n-m\nvllm.entrypoints.cli.main\nchat\nx\n/tmp\n"),
    ],
)
def test_vllm_serve_is_acmserve_serve(arguments: list[str], told: str, tmp_path: Path) -> None:
    for name in ("acmserve", "python3"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@" "${{PROMETHEUS_MULTIPROC_DIR-unset}}"\n')
        program.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PROMETHEUS_MULTIPROC_DIR": "/tmp"}
    done = subprocess.run([DEPLOY / "vllm.sh", *arguments], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == told
