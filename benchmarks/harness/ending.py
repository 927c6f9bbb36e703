"""A benchmark that is ended stops what it started, and keeps what it measured.

    SIGTERM, SIGINT, SIGHUP, --max-minutes
      -> every server is asked to stop, KeyboardInterrupt unwinds the benchmark, servers that go on are killed
      -> FILE.partial.json, which says that it is partial. `acmserve bench report` takes none

Decision: servers are asked first, in the handler. The threads of a benchmark wait for answers, and a pool of threads
ends only when they do. A second signal changes nothing: an end that is interrupted would leave servers. An error of a
benchmark is an end, too. Against SIGKILL there is no remedy here.
"""

from __future__ import annotations

import argparse
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.machine import describe_machine
from acmserve.bench.harness.options import minutes, partial_file, write_partial
from acmserve.bench.harness.run_log import RUN, duration, progress
from acmserve.bench.harness.server_process import end_servers, stop_servers
from acmserve.errors import AcmError

LIMIT_FLAG = "--max-minutes"
TIME_LIMIT = "time limit"
EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129, TIME_LIMIT: 124}
"""What a shell has for each signal, and what `timeout` has for a time limit."""
_REASONS = {signal.SIGALRM: TIME_LIMIT}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)


def run_to_its_end(benchmark: Benchmark, arguments: Sequence[str]) -> int:
    """Run a benchmark. The exit code: its own, or that of the signal that ended it."""
    minutes, own = (None, list(arguments)) if benchmark.takes_limit else take_limit(arguments)
    RUN.begin()
    try:
        with _ended_by_signals(minutes):
            return _run(benchmark, own)
    finally:
        RUN.begin()


def _run(benchmark: Benchmark, own: Sequence[str]) -> int:
    try:
        code = benchmark.run(own)
    except KeyboardInterrupt:
        RUN.ended_by = RUN.ended_by or signal.SIGINT.name
    except Exception as error:
        RUN.ended_by = type(error).__name__
        raise
    finally:
        end_servers()
        if RUN.ended_by:
            _keep(benchmark, own)
    return EXIT_CODES.get(RUN.ended_by, 1) if RUN.ended_by else code


def take_limit(arguments: Sequence[str]) -> tuple[float | None, list[str]]:
    """The minutes of `--max-minutes`, and the other arguments. Raises AcmError for what is no number above 0."""
    own = list(arguments)
    place = next((i for i, word in enumerate(own) if word.partition("=")[0] == LIMIT_FLAG), None)
    if place is None:
        return None, own
    _, mark, value = own.pop(place).partition("=")
    text = value if mark else own.pop(place) if place < len(own) else ""
    try:
        return minutes(text), own
    except argparse.ArgumentTypeError as error:
        raise AcmError(f"{LIMIT_FLAG} {error}") from error


@contextmanager
def _ended_by_signals(minutes: float | None) -> Iterator[None]:
    """Let each signal end the run, once. Handlers belong to the main thread, and are what they were afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        if not RUN.ended_by:
            RUN.ended_by = _REASONS.get(signal.Signals(number), signal.Signals(number).name)
            stop_servers()
            raise KeyboardInterrupt

    # What `nohup` or a shell has switched off stays off.
    heard = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, end) for each in heard}
    try:
        if minutes is not None:
            signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for each, handler in before.items():
            signal.signal(each, handler)


def end_after(limit: float | None) -> None:
    """End the run in so many minutes, for a benchmark that has `--max-minutes` itself. Alone it does nothing.

    None takes that back.
    """
    if callable(signal.getsignal(signal.SIGALRM)):
        signal.setitimer(signal.ITIMER_REAL, 60 * (limit or 0))


class TimeLimit:
    """`minutes` from now on, None for as many as it takes. For a benchmark that repeats, and takes the limit itself.

        limit = TimeLimit(15)
        with limit.kept():                 what is cut in here is given up, and the program goes on behind it
            for number in limit.numbers(5):
                ...                        a repetition

    A repetition for which no time is left does not begin, by what the last one took. One that takes longer yet is cut.
    """

    def __init__(self, minutes: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._minutes, self._clock = minutes, clock
        self._end = math.inf if minutes is None else clock() + 60 * minutes
        if minutes is not None:
            end_after(minutes)

    @property
    def seconds_left(self) -> float:
        """Until the end."""
        return self._end - self._clock()

    def numbers(self, num: int) -> Iterator[int]:
        """1 to `num`, as far as there is time for another one like the last."""
        took = 0.0
        for number in range(1, num + 1):
            if took > self.seconds_left:
                progress(f"{num - number + 1} of {num} repetitions left out: the last one took {duration(took)}")
                return
            began = self._clock()
            yield number
            took = self._clock() - began

    @contextmanager
    def kept(self) -> Iterator[None]:
        """The end of the time ends this block and nothing else. Behind the block it ends nothing."""
        try:
            yield
        except KeyboardInterrupt:
            if RUN.ended_by != TIME_LIMIT:
                raise
            RUN.ended_by = ""
            progress("the time is over: what is whole is told")
        finally:
            if self._minutes is not None:
                end_after(None)


def _keep(benchmark: Benchmark, arguments: Sequence[str]) -> None:
    """Write what was measured, unless the benchmark has made a partial report of its own, or measured nothing."""
    file = partial_file(_json_file(arguments) or Path(f"{benchmark.name}.json"))
    if not RUN.is_reported and RUN.answers:
        write_partial(file, benchmark.name, describe_machine())
        progress(f"ended by {RUN.ended_by}: {len(RUN.answers)} answers are kept in {file}")
    elif not RUN.is_reported:
        progress(f"ended by {RUN.ended_by}: there is no answer to keep")


def _json_file(arguments: Sequence[str]) -> Path | None:
    """Where the whole report would have gone."""
    for place, word in enumerate(arguments):
        name, mark, value = word.partition("=")
        if name == "--json":
            following = arguments[place + 1] if place + 1 < len(arguments) else ""
            return Path(value if mark else following) if value or following else None
    return None
