"""A model's Python: what it sees, what it is answered, and what it cannot do to the process that evaluates."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from acmserve.bench.eval.rlm.python_session import PythonSession
from acmserve.bench.eval.sandbox.limits import RunLimits


def answered(prompts: Sequence[str]) -> list[str]:
    return [f"<{prompt}>" for prompt in prompts]


@pytest.fixture(scope="module")
def session() -> Iterator[PythonSession]:
    with PythonSession("one two\nthree", answered, RunLimits(output_chars=2000)) as made:
        yield made


def test_variables_stay_and_output_is_what_was_printed(session: PythonSession) -> None:
    assert session.run("words = context.split(); print(len(words))") == "3\n"
    assert session.run("print(words[-1])") == "three\n"
    assert session.run("print(SHOW_VARS())") == "['context', 'words']\n"
    assert session.value("words") == "['one', 'two', 'three']"
    assert session.value("nothing") is None


def test_queries_are_answered_in_order(session: PythonSession) -> None:
    assert session.run("print(llm_query('a'), llm_query_batched(['b', 'c']))") == "<a> ['<b>', '<c>']\n"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print(1)\n1 / 0", "ZeroDivisionError"),
        ("def broken(", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("import socket; socket.socket()", "not allowed"),
        ("import os; os.system('true')", "not allowed"),
        ("import subprocess; subprocess.run(['true'])", "not allowed"),
    ],
)
def test_errors_are_output_and_the_session_goes_on(session: PythonSession, code: str, said: str) -> None:
    session.run("kept = 7")
    assert said in session.run(code)
    assert session.run("print(kept)") == "7\n"


def test_long_output_loses_its_middle(session: PythonSession) -> None:
    said = session.run("print('a' * 9000 + 'z')")
    assert said.startswith("aaa")
    assert said.endswith("z\n")
    assert "characters left out" in said
    assert len(said) < 2100
    assert "characters were printed" in session.run("while True: print('x' * 1000)")


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass  # one second of work",
        "import os; os._exit(0)",
        "import os\nfor number in range(3, 9999):\n    try: os.write(number, b'no json\\n')\n    except OSError: pass",
        "import time; time.sleep(60)",
    ],
)
def test_a_session_that_is_lost_is_told_and_begun_anew(code: str) -> None:
    with PythonSession("text", answered, RunLimits(seconds=4.0, cpu_seconds=1)) as session:
        session.run("kept = 7")
        assert "All variables but context are lost" in session.run(code)
        assert "NameError" in session.run("print(kept)")
        assert session.run("print(context)") == "text\n"


def test_memory_and_files_are_bounded() -> None:
    limits = replace(RunLimits(), memory_bytes=2**28, file_bytes=2**16)
    with PythonSession("text", answered, limits) as session:
        assert "MemoryError" in session.run("held = bytearray(2**29)")
        assert "File too large" in session.run("open('big', 'wb').write(bytes(2**20))")
        # The control: what is within the limits works.
        assert session.run("print(open('small', 'wb').write(bytes(2**10)), len(bytearray(2**20)))") == "1024 1048576\n"


def test_the_process_that_evaluates_is_another_one_and_its_settings_are_not_seen() -> None:
    os.environ["ACMSERVE_API_KEY"] = "a secret of this test"
    try:
        with PythonSession("text", answered) as session:
            said = session.run("import os; print(os.getpid(), os.environ.get('ACMSERVE_API_KEY'), os.getcwd())")
    finally:
        del os.environ["ACMSERVE_API_KEY"]
    number, secret, folder = said.split()
    assert (int(number) != os.getpid(), secret) == (True, "None")
    assert "acmserve-repl-" in folder
    assert not os.path.exists(folder)
