"""What `acmserve calibrate` does: serve edits on the user's model, choose a level of `auto`, say what it is worth.

The engine runs with a calibration of its own, of the level `every`: `auto` then moves wherever echoes can be repaired.
So one run tells of every level what it would have done.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acmserve.bench.calibrate.choice import EVERYTHING, choose, serve_at, verdict_rows, why_not
from acmserve.bench.calibrate.edits import GENERIC, OWN, find_askable, questions_line
from acmserve.bench.calibrate.transcripts import read_transcripts
from acmserve.bench.calibrate.ways import WAYS
from acmserve.bench.harness.engine import LocalEngine
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.harness.machine import describe_machine
from acmserve.bench.harness.run_log import progress
from acmserve.bench.models.model_folder import prepare_model
from acmserve.bench.provenance.kept_file import write_whole
from acmserve.bench.repairs import thoughts
from acmserve.bench.repairs.cases import TRAIN, make_cases
from acmserve.bench.repairs.main import FORCED_MODEL, KV_GIB
from acmserve.bench.repairs.summary import HARM_NATS
from acmserve.bench.repairs.table import between
from acmserve.bench.tasks.floor import FLOOR, above_floor, answerable, at_floor, kinds_at_floor
from acmserve.bench.tasks.generators.case import TaskCase, digest
from acmserve.bench.tasks.prompt import TokenizedCase, first_token
from acmserve.errors import AcmError
from acmserve.plan import calibration
from acmserve.plan.calibration import LEVELS, CalibratedShape, Calibration

if TYPE_CHECKING:
    from acmserve.bench.tasks.run import TasksOutcome

SEED = 1
_MAX_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class ModelRecords:
    """Records of cases that say something about the model, and what is told beside them."""

    shape: CalibratedShape
    records: Sequence[Mapping[str, Any]]
    at_floor: Mapping[str, float]
    """Sizes, and kinds of question, that are out."""
    refusal: str | None
    digest: str


def calibrate(model: str, num_each: int, transcripts: Path | None, out: Path) -> int:
    """Measure, print the verdict, write `out`. The exit code is 0. Raises AcmError where nothing can be told."""
    folder = prepare_model(model)
    if not out.absolute().parent.is_dir() or out.is_dir():
        raise AcmError(f"--out {out}: there is no folder for it, or it is one; name a file in a folder that is there")
    # A chain of thoughts is exact under each level but the boldest, so it would tell little of the others.
    made = make_cases(num_each, TRAIN, read_library(), without=(thoughts.TASK,), times_precise=1)
    config = _config_of(folder)
    window = min(_MAX_TOKENS, config.get_text_config().max_position_embeddings)
    shape = _shape_of(config, folder)
    found = _measure(folder, shape, find_edits(made, transcripts, _tokenizer_of(folder), window), window)
    level = choose(found.records) if not found.refusal else calibration.EXACT
    chosen = Calibration(folder.name, found.shape, level, LEVELS[level])
    rows = verdict_rows(found.records, SEED) if not found.refusal else []
    measured = {"machine": describe_machine(), "digest": found.digest, "edits": rows, "at_floor": dict(found.at_floor)}
    write_whole(out, chosen.as_json(measured))
    print("\n".join(verdict_lines(found, level, rows, str(out))))
    return 0


def find_edits(made: Sequence[TaskCase], transcripts: Path | None, tokenizer: Any, window: int) -> list[TokenizedCase]:
    """What the model is asked: edits of the user's conversations, then generic ones. Tells what is left out.

    Raises AcmError where too few are left.
    """
    found: list[TokenizedCase] = []
    if transcripts is not None:
        own = read_transcripts(transcripts, cache(partial(first_token, tokenizer=tokenizer)))
        mine = find_askable(OWN, [edit.case for edit in own], tokenizer, window)
        mine.check_enough(
            f"Add conversations to --transcripts {transcripts}, shorter ones or with other last messages, or leave "
            "--transcripts away."
        )
        found += mine.edits
        for line in (questions_line(own), str(mine)):
            if line is not None:
                progress(line)
    generic = find_askable(GENERIC, made, tokenizer, window)
    generic.check_enough("Name a model with a longer window, or with another tokenizer.")
    if generic.left_out:
        progress(str(generic))
    return [*found, *generic.edits]


def _measure(folder: Path, shape: CalibratedShape, edits: Sequence[TokenizedCase], window: int) -> ModelRecords:
    with tempfile.TemporaryDirectory() as scratch:
        every = Path(scratch) / "every.json"
        level = calibration.EVERY
        every.write_text(Calibration(folder.name, shape, level, LEVELS[level]).as_json({}), encoding="utf-8")
        progress(f"{folder.name}: {len(edits)} edits; starting the engine (about half a minute)")
        engine = LocalEngine(
            folder,
            with_acmserve=True,
            kv_gib=KV_GIB,
            max_model_len=window,
            logits_processors=[FORCED_MODEL],
            **_switched_on(every),
        )
        from acmserve.bench.repairs.run import run_cases
        from acmserve.bench.tasks.run import TasksOutcome

        outcome = TasksOutcome()
        try:
            run_cases(engine, edits, outcome, WAYS, progress)
        finally:
            engine.close()
    if outcome.failures:
        raise AcmError("what was served is not what was asked for, so nothing is told: " + "; ".join(outcome.failures))
    return judged_records(folder.name, shape, outcome, digest(one.case for one in edits))


def judged_records(model: str, shape: CalibratedShape, outcome: TasksOutcome, name: str) -> ModelRecords:
    """The records with the questions that the model can answer, `name` is their digest. Raises AcmError without any."""
    kept = answerable(outcome.records)
    if not kept:
        raise AcmError(
            f"{model} answers too few of the questions without any edit, so moves cannot be judged on it. "
            "Give conversations of your own with --transcripts."
        )
    kinds = kinds_at_floor(above_floor(outcome.records))
    out = at_floor(outcome.records) | {f"{kind} questions": right for kind, right in kinds.items()}
    return ModelRecords(shape, kept, out, outcome.refusal, name)


def _config_of(folder: Path) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder, local_files_only=True)


def _tokenizer_of(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise AcmError(f"{folder} has no tokenizer that can be read: {error}. Name a folder with one.") from error


def _shape_of(config: Any, folder: Path) -> CalibratedShape:
    try:
        return CalibratedShape.of_config(config.to_dict())
    except KeyError as error:
        raise AcmError(f"{folder} has a config.json without {error}, so its calibration could not be told") from None


def _switched_on(every: Path) -> Mapping[str, Any]:
    from acmserve.engine.config import engine_config

    return engine_config(calibration=str(every))


def verdict_lines(found: ModelRecords, level: str, rows: Sequence[Mapping[str, Any]], out: str) -> list[str]:
    """What people read: a line for each kind of edit, the verdict, and how to serve with it."""
    if found.refusal:
        return [f"The engine moves no KV of this model ({found.refusal}).", "Verdict: exact.", f"Written to {out}."]
    lines = [f"{'':<26}{'auto moves':>11}{'KL, nats':>24}{'right, points':>22}{'reuse: KL':>24}{'worse':>7}"]
    for row in rows:
        auto, reuse = row["auto"], row["reuse"]
        kl = f"{auto['kl']:.3f}{between(auto['kl_interval'], 1, 3)}"
        right = f"{100 * auto['right_beside_exact']:+.1f}{between(auto['right_beside_exact_interval'], 100, 1)}"
        moved_kl = f"{reuse['kl']:.3f}{between(reuse['kl_interval'], 1, 3)}"
        name = f"{row['edits']} ({row['num_cases']})"
        lines.append(f"{name:<26}{auto['moved_share']:>11.0%}{kl:>24}{right:>22}{moved_kl:>24}{row['num_harmed']:>7}")
    lines += [
        "",
        "Each edit is served at a level that other edits chose. KL is that to exact, right answers are beside exact.",
        f"In brackets 95 % intervals over edits. Worse: than under reuse, by more than {HARM_NATS} nats.",
        *(
            [f"Left out, since exact answers less than {FLOOR:.0%} of them: {', '.join(found.at_floor)}."]
            * bool(found.at_floor)
        ),
        "",
        f"Verdict: {_verdict(level, rows)}",
        *_bolder(found, level),
        f"Written to {out}. `acmserve serve MODEL --calibration {out}` serves `auto` with it.",
    ]
    return lines


def _verdict(level: str, rows: Sequence[Mapping[str, Any]]) -> str:
    every = next(row for row in rows if row["edits"] == EVERYTHING)
    if level == calibration.EXACT:
        return "exact. No level of `auto` passed on this model, so `auto` moves nothing."
    still = [row["edits"] for row in rows if not row["auto"]["moved_share"]]
    exact = f" These stay exact: {', '.join(still)}." if still else ""
    moved = f"{every['auto']['moved_share']:.0%}"
    return f"level {level}. On edits that it was not chosen on, `auto` moved {moved} of what could move.{exact}"


def _bolder(found: ModelRecords, level: str) -> list[str]:
    """Why the next bolder level was not taken."""
    names = list(LEVELS)
    bolder = names[names.index(level) + 1 :]
    return [f"Level {name}: {why}" for name in bolder if (why := why_not(serve_at(found.records, name)))][:1]
