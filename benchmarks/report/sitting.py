"""One sitting of `acmserve bench reruns --run`: stale results are measured one after the other, until a deadline.

    plan_reruns --next_rerun--> a command --> bench-results/unfinished/NAME.json --refusal--> results/NAME.json

A result is judged before it replaces the recorded one. It is refused where it is a part, where its gate is red, and
where code that it measures was changed meanwhile. It is refused, too, where it is about times of a busy machine, or of
too few repetitions. What is refused stays in the folder of unfinished results, under another name.

A target of make writes into the results of the checkout by itself. So the files before it are put back at once, and
what it wrote is judged like any other. Of such a result the sitting notes how busy others kept the machine.

Decision: the machine is looked at before each command that needs a quiet one. Where it is busy a count is next, and
then it is looked at again.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from acmserve.bench.harness.benchmark import BenchmarkRun
from acmserve.bench.harness.machine import is_of_processor, vectors_here
from acmserve.bench.harness.options import as_json, partial_file
from acmserve.bench.harness.run_log import duration, progress
from acmserve.bench.provenance.code_state import ROOT, commit_of, is_same_code
from acmserve.bench.provenance.kept_file import read_kept, write_whole
from acmserve.bench.provenance.machine_use import ProcessorTimes, busy_line, is_busy, is_quiet_now, use_between
from acmserve.bench.provenance.repetitions import too_few_line
from acmserve.bench.report.all import RESULTS, all_runs
from acmserve.bench.report.ledger import make_row
from acmserve.bench.report.page import SECTIONS
from acmserve.bench.report.rerun_plan import Rerun, fits, next_rerun, rerun_lines
from acmserve.bench.report.sources import ResultSource, find_sources
from acmserve.errors import AcmError

_END_SECONDS = 180.0
"""A benchmark that is ended stops its servers and keeps what it has. Behind that it is killed."""
_KILL_SECONDS = 5.0
_LOOK_AGAIN_SECONDS = 240.0
_NOTED = "took-at-least.json"
_ENDED = "was ended, since the time was over"


@dataclass(frozen=True, slots=True)
class EndedRerun:
    """`failure` None: all its results are recorded."""

    rerun: Rerun
    seconds: float
    failure: str | None

    def __str__(self) -> str:
        return f"{duration(self.seconds):>12}  {', '.join(self.rerun.names)}: {self.failure or 'recorded'}"


class Sitting:
    """`results` is the folder in which results are recorded, `unfinished` the one of what is not, or not yet.

    `seconds` are those until the deadline.
    """

    def __init__(
        self,
        results: Path,
        unfinished: Path,
        seconds: float = math.inf,
        *,
        is_quiet: Callable[[], bool] = is_quiet_now,
        sources: Mapping[str, ResultSource] | None = None,
    ) -> None:
        self.ended: list[EndedRerun] = []
        self.left: list[Rerun] = []
        self._results, self._unfinished, self._is_quiet = results, unfinished, is_quiet
        self._sources = find_sources() if sources is None else sources
        self._deadline = time.monotonic() + seconds

    def hold(self, reruns: Sequence[Rerun]) -> None:
        """Run what fits, each command once. Where only times are left and the machine is busy, wait for it."""
        for folder in (self._results, self._unfinished):
            folder.mkdir(parents=True, exist_ok=True)
        self.left = list(reruns)
        while any(fits(one, self._seconds_left()) for one in self.left):
            one = next_rerun(self.left, self._seconds_left(), self._is_quiet)
            if one is not None:
                self.ended.append(self._ended(one, len(reruns)))
            elif math.isinf(self._deadline):
                return
            else:
                progress(f"the machine is busy, {duration(self._seconds_left())} until the end; looking again")
                time.sleep(_LOOK_AGAIN_SECONDS)

    def summary(self) -> list[str]:
        """What was recorded, what was refused and why, and what is left."""
        num_recorded = sum(one.failure is None for one in self.ended)
        lines = ["", f"{num_recorded} of {len(self.ended)} commands are recorded:", *map(str, self.ended)]
        if self.left:
            left = rerun_lines(self.left, vectors_here())
            lines += ["", "Left, since it did not fit or the machine was busy:", *left]
        return lines

    def _seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    def _ended(self, one: Rerun, num_reruns: int) -> EndedRerun:
        took = "nobody knows how long" if one.seconds is None else f"about {duration(one.seconds)}"
        limit = "" if math.isinf(self._deadline) else f", {duration(self._seconds_left())} until the end"
        progress(f"== {len(self.ended) + 1} of {num_reruns}: {one.command}; {took}{limit}")
        began = time.monotonic()
        failure = self.measure(one)
        self.left.remove(one)
        seconds = time.monotonic() - began
        progress(f"== {', '.join(one.names)}: {failure or 'recorded'}, after {duration(seconds)}")
        return EndedRerun(one, seconds, failure)

    def measure(self, one: Rerun) -> str | None:
        """Run it, and record what may be recorded. Why something was not, else None."""
        wanted = (one.command, one.with_amx)
        sources = [source for source in self._sources.values() if (source.command, source.with_amx) == wanted]
        files = [self._unfinished / f"{source.name}.json" for source in sources]
        if self._settle_left(one, sources, files):
            return None
        began = ProcessorTimes.now()
        with _taken_back([made for file in files for made in (file, file.with_suffix(".png"), partial_file(file))]):
            code = self._run(words_of(one.command, files[0], one.limit_minutes(self._seconds_left())))
        use = use_between(began, ProcessorTimes.now())
        if code is None:
            self._note([source for source in sources if not source.goes_on], use["seconds"])
        found = [self._settle(source, file, use, code) for source, file in zip(sources, files, strict=True)]
        return "; ".join(dict.fromkeys(why for why in found if why)) or None

    def _settle_left(self, one: Rerun, sources: Sequence[ResultSource], files: Sequence[Path]) -> bool:
        """Record what an earlier sitting measured and could not judge any more. Whether that is all there is to do.

        Times of which nobody noted how busy the machine was are dropped.
        """
        left = {}
        for source, file in zip(sources, files, strict=True):
            if file.is_file() and (not source.is_timed or "use" in (_read(file) or {})):
                left[source.name] = self._settle(source, file, {}, None)
            file.unlink(missing_ok=True)
        return all(left.get(name) == "" for name in one.names)

    def _run(self, words: Sequence[str]) -> int | None:
        """The exit code of a command, None where it was ended at the deadline."""
        environ = {"OMP_WAIT_POLICY": "passive", **os.environ}
        process = subprocess.Popen(words, cwd=ROOT, env=environ, start_new_session=True)
        try:
            return process.wait(None if math.isinf(self._deadline) else max(1.0, self._seconds_left()))
        except subprocess.TimeoutExpired:
            return None
        finally:
            end_process(process)

    def _settle(self, source: ResultSource, file: Path, use: Mapping[str, Any], code: int | None) -> str:
        """Record a result. Why it is not, else "". The `code` is None where the deadline ended the process."""
        if not file.is_file():
            return _ENDED if code is None else f"wrote no {file.name}" + (f", exit code {code}" if code else "")
        report = _read(file)
        if report is not None and use and "use" not in report:
            report["use"] = dict(use)
            write_whole(file, as_json(report))
        if why := "its file is cut off" if report is None else self._refusal(source, report, code):
            file.replace(file.with_suffix(".refused.json"))
            return f"{source.name} is refused: {why}"
        shutil.move(file, self._results / file.name)
        plot = file.with_suffix(".png")
        if plot.is_file() and any(section.plot == plot.name for section in SECTIONS):
            shutil.move(plot, self._results / plot.name)
        self._forget(source.name)
        return ""

    def _refusal(self, source: ResultSource, report: Mapping[str, Any], code: int | None) -> str:
        """Why a result may not be recorded, not even in the place of the one that is there. "" where it may."""
        if why := refusal(source, report) or _code_line(report, code):
            return why
        file, num_played = self._results / f"{source.name}.json", report.get("num_played")
        old = _read(file) if num_played is not None and file.is_file() else None
        if old is None or old.get("num_played", 0) <= num_played or make_row(source, old, ROOT).is_stale:
            return ""
        return f"{num_played} samples were played, and {old['num_played']} in the recorded one, which is current"

    def _forget(self, name: str) -> None:
        """What it takes is recorded now, so nothing is noted of it."""
        noted = read_noted(self._unfinished)
        if noted.pop(name, None) is not None:
            write_whole(self._unfinished / _NOTED, as_json(noted))

    def _note(self, sources: Sequence[ResultSource], seconds: float) -> None:
        """Keep how long a command that was ended may take, of results that are not there."""
        noted = read_noted(self._unfinished)
        for name in (source.name for source in sources):
            file = self._unfinished / f"{name}.json"
            if not file.is_file():
                part = partial_file(file)
                told = (_read(part) if part.is_file() else None) or {}
                done, steps = told.get("steps_done") or 0, told.get("steps") or 0
                noted[name] = round(max(seconds, seconds * steps / done if done else 2 * seconds), 1)
        write_whole(self._unfinished / _NOTED, as_json(noted))


def read_noted(unfinished: Path) -> dict[str, float]:
    """Results whose commands were ended at a deadline: about how many seconds each takes."""
    file = unfinished / _NOTED
    remedy = "Remove it, and commands that were ended are begun where they may be ended again."
    return read_kept(file, remedy) if file.is_file() else {}


def _read(file: Path) -> dict[str, Any] | None:
    """A report, None where what is there is none or a part of one."""
    try:
        return read_kept(file, "")
    except AcmError:
        return None


def _code_line(report: Mapping[str, Any], code: int | None) -> str:
    """What an exit code says against a result that has no gate of its own, "" for nothing.

    One that has was judged when it was written. The code may be that of what followed, such as another test.
    """
    if "gate" in report or code == 0:
        return ""
    return "it has no gate, and its command was ended" if code is None else f"exit code {code}"


def refusal(source: ResultSource, report: Mapping[str, Any], root: Path = ROOT) -> str:
    """Why a result may not be recorded, "" where it may."""
    if report.get("partial"):
        return "it is a part of a result"
    gate = report.get("gate", {"green": True})
    if not gate["green"]:
        return ": ".join(["its gate is red", *gate.get("failures", ())[:1]])
    if source.is_timed and is_busy(report):
        return busy_line(report)
    if source.is_timed and (few := too_few_line(report)):
        return few
    if not is_of_processor(source.with_amx, (report.get("machine") or {}).get("vectors")):
        return f"it is of a processor with{'out' if source.with_amx else ''} AMX"
    row = make_row(source, report, root)
    return row.state if row.is_stale else ""


def words_of(command: str, file: Path, limit_minutes: float | None = None) -> list[str]:
    """What is run, so that a benchmark writes to this file. It goes on where it was ended, if it can."""
    words = shlex.split(command)
    limit = [] if limit_minutes is None else ["--max-minutes", f"{limit_minutes:.1f}"]
    if words[0] == "make":
        return [*words, *([f"ARGS={shlex.join(limit)}"] if limit else [])]
    flags = ["--json", str(file), *limit]
    if (run := _run_of(file.stem)) is not None:
        flags += ["--plot", str(file.with_suffix(".png"))] if run.can_plot else []
        flags += (run.resume_flags or ()) if _goes_on_with(partial_file(file), run.measures) else ()
    return [sys.executable, "-m", *(words if words[0] == "acmserve" else words[2:]), *flags]


def _run_of(name: str) -> BenchmarkRun | None:
    return next((run for run in all_runs() if run.name == name), None)


def _goes_on_with(part: Path, measures: Sequence[str]) -> bool:
    """Whether a part of a result is there, and of the code that is measured now."""
    told = _read(part) if part.is_file() else None
    return told is not None and is_same_code(told.get("machine") or {}, commit_of(ROOT)[0], measures, ROOT)


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end and give it time for that. Then nothing of what it started is left."""
    if process.poll() is not None:
        return
    started = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    alive = psutil.wait_procs(started, timeout=0)[1]
    for each in alive:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(alive, _KILL_SECONDS)


@contextmanager
def _taken_back(files: Sequence[Path]) -> Iterator[None]:
    """What is written into the results of the checkout meanwhile is found at these paths, and the old files again."""
    there = {file: RESULTS / file.name for file in files}
    before = {own: own.read_bytes() if own.is_file() else None for own in there.values()}
    try:
        yield
    finally:
        for file, own in there.items():
            old = before[own]
            if own.is_file() and own.read_bytes() != old:
                shutil.move(own, file)
                if old is not None:
                    write_whole(own, old)
