"""One run of the suite: stages in their order, engines shared, each stage kept when it is done.

    left out    a stage, or a length of it, that this device cannot have, or for which no time is left
    failed      a stage whose engines did not start, or ended. The others go on

It knows what a stage is given, and nothing of what it measures.
"""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acmserve.bench.gpu.device import CPU, Device, told_by_program
from acmserve.bench.gpu.room import OTHER_GIB, PairPlan, plan_pair, plan_room
from acmserve.bench.gpu.served_model import LLAMA_8B, TINY, ServedModel
from acmserve.bench.gpu.stage import (
    AUTO,
    DECODE,
    FOLD,
    HOLES,
    OVERHEAD,
    SESSIONS,
    START_MINUTES,
    KeptStages,
    SuiteStage,
    by_type,
)
from acmserve.bench.harness.options import as_gate
from acmserve.bench.harness.run_log import progress
from acmserve.errors import AcmError

if TYPE_CHECKING:
    from acmserve.bench.gpu.engine_pair import EnginePair


@dataclass(frozen=True, slots=True)
class SuiteSizes:
    """What is measured of each stage. Lengths in tokens, `numbers` are sessions side by side, `holes` are those of a
    prompt.

    `other_gib` is what an engine takes beside weights and KV.
    """

    contexts: Sequence[int]
    numbers: Sequence[int]
    session_contexts: Sequence[int]
    num_repetitions: int
    num_rounds: int
    num_conversations: int
    other_gib: float
    chunks: Sequence[int]
    holes: Sequence[int]


WRONG_MOVE = "a move differs from the reference, or the card rounds otherwise"
_KERNEL_ON_CPU = ("--cpu-check", "--models", "Llama-3-8B")
CONTEXTS, CHUNKS = (4096, 16_384, 32_768, 65_536, 131_072), (128, 256, 512, 1024, 2048)
CARD_SIZES = SuiteSizes(CONTEXTS, (1, 4, 16, 32), (2048, 8192), 5, 2, 16, OTHER_GIB, CHUNKS, (16, 64))
CPU_SIZES = SuiteSizes((1024, 2048), (1, 4), (256,), 2, 2, 4, 0.0, CHUNKS[:1], (4,))


@dataclass
class SuiteRun:
    """The reports of its stages, what was left out, and what failed."""

    device: Device
    sizes: SuiteSizes
    kept: KeptStages
    minutes: float
    began: float = field(default_factory=time.monotonic)
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: list[dict[str, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def model(self) -> ServedModel:
        """The 8B shape on a card."""
        return TINY if self.device.kind == CPU else LLAMA_8B

    def run(self, names: Sequence[str]) -> None:
        """All stages that are wanted and not kept yet."""
        for kv_type, wanted in by_type(names):
            for stage in wanted:
                if (found := self.kept.take(stage.name)) is not None:
                    progress(f"{stage.name}: taken over from an earlier run")
                    self.stages[stage.name] = found
            missing = [stage for stage in wanted if stage.name not in self.stages]
            if not kv_type:
                for stage in missing:
                    self._run_alone(stage)
            elif missing:
                self._run_engines(kv_type, missing)

    def _run_alone(self, stage: SuiteStage) -> None:
        """A stage that is a program of its own. Without vLLM that of the kernel still runs."""
        measure = measure_kernel
        if stage.kind == HOLES:
            from acmserve.bench.gpu.engine_pair import why_no_engines
            from acmserve.bench.gpu.holes import measure_holes

            measure = measure_holes
            if why := why_no_engines(self.device, AUTO):
                self._leave_out(stage, why)
                return
        self._measure(stage, lambda stage: measure(self.device))

    def _run_engines(self, kv_type: str, wanted: Sequence[SuiteStage]) -> None:
        """Start two engines once, for all stages of a type of KV."""
        from acmserve.bench.gpu.engine_pair import pair_settings, start_pair, why_no_engines

        sizes = self.sizes
        room = plan_room(self.device, self.model, kv_type, sizes.other_gib)
        plan = plan_pair(sizes.contexts, sizes.numbers, sizes.session_contexts, room)
        why = why_no_engines(self.device, kv_type)
        if not why and not (plan.contexts and plan.cases):
            why = f"no fold fits, or no session: there are {room}"
        if not why:
            why = self._no_time(START_MINUTES + wanted[0].minutes)
        if why:
            for stage in wanted:
                self._leave_out(stage, why)
            return
        progress(f"{kv_type} KV: {room}")
        settings = pair_settings(self.device, kv_type, room, longest_prompt(plan, sizes.chunks))
        try:
            with (
                tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder,
                start_pair(self.model.write(Path(folder)), self.device, self.model, kv_type, settings) as pair,
            ):
                for stage in wanted:
                    self._measure(stage, lambda stage: self._measure_pair(stage, pair, plan))
        except AcmError as error:
            self._fail([stage for stage in wanted if stage.name not in self.stages], error)

    def _measure_pair(self, stage: SuiteStage, pair: EnginePair, plan: PairPlan) -> dict[str, Any]:
        """One stage on two engines, with what was left out of it, and what both were started with."""
        from acmserve.bench.gpu.decode import measure_decode
        from acmserve.bench.gpu.fold import fold_cells, measure_fold
        from acmserve.bench.gpu.overhead import measure_overhead
        from acmserve.bench.gpu.sessions import measure_sessions

        sizes = self.sizes

        def has_time(seconds: float) -> bool:
            return not self._no_time(seconds / 60)

        measures: dict[str, Callable[[], dict[str, Any]]] = {
            FOLD: lambda: measure_fold(
                pair, fold_cells(plan.contexts, sizes.holes), sizes.num_rounds, sizes.num_repetitions, has_time
            ),
            OVERHEAD: lambda: measure_overhead(pair, sizes.num_conversations, sizes.num_repetitions),
            DECODE: lambda: measure_decode(pair, sizes.chunks, sizes.num_repetitions),
            SESSIONS: lambda: measure_sessions(pair, plan.cases, sizes.num_repetitions),
        }
        left_out = {FOLD: plan.long, SESSIONS: plan.many}.get(stage.kind, ())
        return measures[stage.kind]() | {
            "kv_type": pair.kv_type,
            "model": pair.model.name,
            "settings": {name: value for name, value in pair.settings.items() if name != "imports"},
            "pool_tokens": plan.room.pool_tokens,
            "left_out": [asdict(one) for one in left_out],
        }

    def _measure(self, stage: SuiteStage, measure: Callable[[SuiteStage], dict[str, Any]]) -> None:
        """Keep what a stage tells. One that fails does not stop the others, for a card may be there once only."""
        if why := self._no_time(stage.minutes):
            self._leave_out(stage, why)
            return
        progress(f"== {stage.name}: {stage.what}")
        begun = time.monotonic()
        try:
            report = measure(stage)
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is told, and must not cost the other stages
            traceback.print_exc()
            self._fail([stage], error)
            return
        report["stage_seconds"] = round(time.monotonic() - begun, 1)
        self.stages[stage.name] = report
        self.kept.keep(stage.name, report)
        for one in report.get("left_out", ()):
            progress(f"{stage.name}, left out: {one['what']}: {one['why']}")

    def _no_time(self, minutes: float) -> str:
        """Why a stage of so many minutes does not begin any more, "" where it does. On a CPU all are short."""
        left = self.minutes - (time.monotonic() - self.began) / 60
        if self.device.kind == CPU or left >= minutes:
            return ""
        return f"it may take {minutes:.0f} minutes, and {max(0.0, left):.0f} are left"

    def _leave_out(self, stage: SuiteStage, why: str) -> None:
        self.left_out.append({"stage": stage.name, "what": stage.what, "why": why})
        progress(f"{stage.name}, left out: {why}")

    def _fail(self, stages: Sequence[SuiteStage], error: Exception) -> None:
        said = str(error) if isinstance(error, AcmError) else f"{type(error).__name__}: {error}"
        self.failures += [f"{stage.name}: {said}" for stage in stages]
        progress(f"{', '.join(stage.name for stage in stages)} failed: {said}")

    def report(self) -> dict[str, Any]:
        """JSON-ready: one gate of all stages, and each stage with its own."""
        red = [f"{name}: {failure}" for name, stage in self.stages.items() for failure in stage["gate"]["failures"]]
        return {
            "device": asdict(self.device),
            "sizes": asdict(self.sizes),
            "gate": as_gate([*self.failures, *red]),
            "left_out": self.left_out,
            "stages": self.stages,
        }


def longest_prompt(plan: PairPlan, chunks: Sequence[int]) -> int:
    """Tokens of the longest prompt of all stages, with its answer."""
    from acmserve.bench.gpu import decode, overhead
    from acmserve.bench.gpu.sessions import GROWTH

    cases = (context + GROWTH for _, context in plan.cases)
    return max(overhead.LONGEST, decode.LONGEST, *chunks, *plan.contexts, *cases)


def measure_kernel(device: Device) -> dict[str, Any]:
    """`kernel/main.py` in a process of its own, so that its memory is given back. It prints its table itself.

    Raises AcmError where it has no report.
    """
    options = _KERNEL_ON_CPU if device.kind == CPU else ()
    return kernel_report(told_by_program("acmserve.bench.gpu.kernel.main", *options))


def kernel_report(told: dict[str, Any]) -> dict[str, Any]:
    """What `main.py` wrote. The gate is whether moves are right. The bar beside a copy is told and is no gate. Pure."""
    machine = told["machine"]
    return {
        "gate": as_gate([] if told["correct"] else [WRONG_MOVE]),
        "below_bar": told["below_bar"],
        "other_roundings": told["other_roundings"],
        "triton": machine["versions"]["triton"],
        "attention": machine["attention"],
        "rows": told["rows"],
    }
