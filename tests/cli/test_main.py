"""The command line: what it prints where, and its exit codes. Nothing here starts an engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from acmserve import __version__
from acmserve.bench.harness.benchmark import find_benchmarks
from acmserve.cli import COMMANDS, main


@pytest.mark.parametrize("command", [name for name, command in COMMANDS.items() if command.add_flags is not None])
def test_help_of_a_command_exits_with_zero(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"usage: acmserve {command}" in capsys.readouterr().out


def test_help_teaches_every_command_by_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert [command for command in COMMANDS if f"  acmserve {command} " not in shown] == []


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.strip() == f"acmserve {__version__}"


@pytest.mark.parametrize(
    ("arguments", "bad"),
    [([], "COMMAND"), (["serv"], "serv"), (["model", "gpt"], "gpt"), (["demo", "--jsn", "x"], "--jsn")],
)
def test_wrong_usage_names_the_bad_word(arguments: list[str], bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert bad in capsys.readouterr().err


def test_unknown_benchmark_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "speed"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"acmserve: error: unknown benchmark 'speed'; choose one of {', '.join(find_benchmarks())}\n"


def test_bench_without_a_name_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 0
    assert "edit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--repetitions", "0"], "'0' is not a positive number"),
        (["--sizes", "3000"], "unrecognized arguments: --sizes 3000"),
    ],
)
def test_bench_hands_its_flags_on_unread(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", "edit", *flags])
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", [["demo", "--model"], ["bench", "edit", "--model"]])
def test_a_folder_without_a_model_is_refused_by_name(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, str(tmp_path)]) == 2
    assert f"acmserve: error: {tmp_path} is not a Hugging Face folder" in capsys.readouterr().err


def test_help_does_not_import_the_engine() -> None:
    """`acmserve --help` must answer at once. Importing vLLM or torch takes seconds."""
    code = (
        "import sys, contextlib\n"
        "from acmserve.cli import main\n"
        "with contextlib.suppress(SystemExit): main(['--help'])\n"
        "heavy = sorted({'vllm', 'torch', 'transformers'} & set(sys.modules))\n"
        "print(heavy, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
