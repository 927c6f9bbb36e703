"""A benchmark that is ended stops its servers, keeps what it measured, and says that it is a part."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.ending import EXIT_CODES, end_after, run_to_its_end, take_limit
from acmserve.bench.harness.options import hand_over, partial_file
from acmserve.bench.harness.run_log import RUN, RunLog
from acmserve.bench.report.page import _read
from acmserve.errors import AcmError
from tests.support.docs.pages import ROOT

SERVER = """
import http.server, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Healthy).serve_forever()
"""
TOY = f"""
import signal, sys, threading, time
for each in (signal.SIGINT, signal.SIGHUP):
    signal.signal(each, signal.SIG_DFL)  # the suite may run under `nohup`, which has switched them off
from concurrent.futures import ThreadPoolExecutor
import httpx
from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.ending import run_to_its_end
from acmserve.bench.harness.run_log import RUN, counted, progress
from acmserve.bench.harness.server_process import HttpProcess

def wait_for_answers(url):
    while True:
        httpx.get(url)

def run(arguments):
    with (
        HttpProcess(lambda port: [sys.executable, "-c", {SERVER!r}, str(port)], {{}}) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        url = server.wait_ready()
        asked = pool.submit(wait_for_answers, url)
        for number in range(1, 4):
            progress(counted(number, 1000, "a step"))
            RUN.answered(0.5, {{"kept_tokens": number}})
        progress(f"server {{server._process.pid}}")
        time.sleep(600)

toy = Benchmark("toy", "", run)
sys.exit(toy.run(sys.argv[2:]) if sys.argv[1] == "bare" else run_to_its_end(toy, sys.argv[2:]))
"""

Started = tuple[subprocess.Popen[str], psutil.Process]
Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the toy, and gives its process and that of its server, which has a child. Neither outlives the test."""
    servers: list[psutil.Process] = []

    def started(*arguments: str) -> Started:
        process = subprocess.Popen(
            [sys.executable, "-c", TOY, *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        line = next((line for line in process.stderr if line.startswith("server ")), "")
        if not line:
            process.communicate()
            raise TimeoutError(f"it ended before its server was up: {process.returncode}")
        servers.append(psutil.Process(int(line.split()[1])))
        return process, servers[-1]

    yield started
    for server in servers:
        if server.is_running():
            for each in (*server.children(), server):
                each.kill()


def start_within(start: Start, limits: Sequence[str]) -> Started:
    """The toy with the shortest limit that leaves it the time to start, which depends on what else the machine does."""
    for limit in limits:
        with suppress(TimeoutError):
            return start("whole", "--max-minutes", limit)
    pytest.fail(f"it does not start within {limits[-1]} minutes")


def is_gone(*processes: psutil.Process) -> bool:
    return all(not each.is_running() or each.status() == psutil.STATUS_ZOMBIE for each in processes)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_ends_the_servers_and_keeps_the_answers(name: str, start: Start, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    process, server = start("whole", "--json", str(file))
    (child,) = server.children()
    process.send_signal(signal.Signals[name])
    _, said = process.communicate()
    assert process.returncode == EXIT_CODES[name], said
    assert is_gone(server, child)
    assert not file.exists()
    kept = json.loads(partial_file(file).read_text(encoding="utf-8"))
    assert (kept["partial"], kept["benchmark"], kept["ended_by"]) == (True, "toy", name)
    assert [answer["kept_tokens"] for answer in kept["answers"]] == [1, 2, 3]
    assert (kept["steps_done"], kept["steps"]) == (2, 1000)
    assert f"3 answers are kept in {partial_file(file)}" in said


def test_without_the_harness_a_signal_leaves_the_server(start: Start, tmp_path: Path) -> None:
    """The control: what `timeout` did before."""
    process, server = start("bare", "--json", str(tmp_path / "out.json"))
    process.terminate()
    process.communicate()
    assert process.returncode == -signal.SIGTERM
    assert not is_gone(server)
    assert list(tmp_path.iterdir()) == []


def test_a_time_limit_is_an_end_too(start: Start, tmp_path: Path) -> None:
    process, server = start_within(start, ("0.05", "0.15", "0.5", "5"))
    _, said = process.communicate()
    assert process.returncode == EXIT_CODES["time limit"] == 124, said
    assert is_gone(server)
    kept = json.loads((tmp_path / "toy.partial.json").read_text(encoding="utf-8"))
    assert kept["ended_by"] == "time limit"


def test_an_error_is_an_end_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Sequence[str]) -> int:
        RUN.answered(0.5, {"kept_tokens": 7}, server="x")
        raise AcmError("the server did not start")

    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(AcmError, match="did not start"):
        run_to_its_end(Benchmark("toy", "", fail), [])
    kept = json.loads((tmp_path / "toy.partial.json").read_text(encoding="utf-8"))
    assert (kept["ended_by"], kept["answers"][0]["kept_tokens"]) == ("AcmError", 7)
    assert (RUN.ended_by, RUN.answers) == ("", []), "the next run begins anew"
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_report_of_what_is_whole_says_that_it_is_a_part(tmp_path: Path) -> None:
    """Some benchmarks make a report of the cases that they have, as `bench fidelity` does."""
    file = tmp_path / "out.json"

    def stopped(_: Sequence[str]) -> int:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        options = Namespace(json=file, plot=None)
        return hand_over({"gate": {"green": True, "failures": []}, "rows": [1]}, lambda report: [], None, options)

    assert run_to_its_end(Benchmark("toy", "", stopped), ["--json", str(file)]) == EXIT_CODES["SIGTERM"]
    assert not file.exists()
    kept = json.loads(partial_file(file).read_text(encoding="utf-8"))
    wanted = {"gate": {"green": True, "failures": []}, "rows": [1], "partial": True, "ended_by": "SIGTERM"}
    assert wanted.items() <= kept.items()


def test_a_second_signal_leaves_no_server(start: Start) -> None:
    process, server = start("whole")
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.01)
    process.communicate()
    assert process.returncode == EXIT_CODES["SIGTERM"]
    assert is_gone(server)


def test_the_report_takes_no_part(tmp_path: Path) -> None:
    file = tmp_path / "edit.json"
    log = RunLog(ended_by="SIGTERM")
    file.write_text(json.dumps(log.as_partial()), encoding="utf-8")
    with pytest.raises(AcmError, match="part of a result"):
        _read(file)
    file.write_text(json.dumps(log.as_partial() | {"partial": False}), encoding="utf-8")
    assert _read(file)["ended_by"] == "SIGTERM"


@pytest.mark.parametrize(
    ("arguments", "minutes", "own"),
    [
        (["--json", "f"], None, ["--json", "f"]),
        (["--max-minutes", "25", "--quick"], 25.0, ["--quick"]),
        (["--quick", "--max-minutes=0.5"], 0.5, ["--quick"]),
    ],
)
def test_the_limit_is_taken_from_any_benchmark(arguments: list[str], minutes: float | None, own: list[str]) -> None:
    assert take_limit(arguments) == (minutes, own)


def test_a_benchmark_that_takes_the_limit_has_it_as_a_flag() -> None:
    seen: list[Sequence[str]] = []

    def run(arguments: Sequence[str]) -> int:
        seen.append(arguments)
        return 0

    given = ["--max-minutes", "7", "--quick"]
    assert run_to_its_end(Benchmark("own", "", run, takes_limit=True), given) == 0
    assert run_to_its_end(Benchmark("ended", "", run), given) == 0
    assert seen == [given, ["--quick"]]


def test_a_benchmark_with_a_limit_of_its_own_is_ended_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of a run nobody would hear the alarm, so none is set."""

    def run(arguments: Sequence[str]) -> int:
        end_after(0.001)
        time.sleep(60)
        return 0

    monkeypatch.chdir(tmp_path)
    assert run_to_its_end(Benchmark("own", "", run, takes_limit=True), []) == EXIT_CODES["time limit"]
    end_after(0.001)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("arguments", [["--max-minutes"], ["--max-minutes", "x"], ["--max-minutes=-1"]])
def test_a_limit_that_is_no_time_is_refused(arguments: list[str]) -> None:
    with pytest.raises(AcmError, match="--max-minutes"):
        take_limit(arguments)


def test_progress_says_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    log = RunLog()
    now = iter([100.0, 130.0, 160.0, 500.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    told = [log.counted(number, 10, "x") for number in (1, 2, 3)]
    assert told == ["1 of 10: x", "2 of 10: x; about 4:30 min left", "3 of 10: x; about 4:00 min left"]
    assert log.counted(1, 2, "another count") == "1 of 2: another count"
