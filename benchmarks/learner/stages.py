"""The stages from scripted rollouts to a trained model. What a stage has made lies in the work folder, and is kept.

    work / POLICY.jsonl        rows of `acmserve export --format sft`, of the scripted sessions
    work / POLICY.pt           where its training stands, removed when it has ended
    work / POLICY /            the trained model, as `acmserve serve` takes it

Weights never leave that folder. Knows stages and files. Does not know what is judged.

Decision: a model is trained, saved and served in float32. In bfloat16 a server on a CPU answers otherwise than the
model that was trained.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer

from acmserve.bench.agent.scripted_server import MODEL, TINY, scripted_server
from acmserve.bench.harness.run_log import progress
from acmserve.bench.harness.server_process import ServerProcess
from acmserve.bench.learner.agreement import load_float32
from acmserve.bench.learner.decisions import POLICIES, check_reward, session_script
from acmserve.bench.learner.sessions import SUITE_FILE, SessionPlayer
from acmserve.bench.learner.sft import SftOptions, SftRun, read_rows
from acmserve.bench.learner.tasks import training_tasks
from acmserve.bench.provenance.kept_file import kept_entries, write_whole
from acmserve.models.smollm2 import TOOLS_TEMPLATE, prepare
from acmserve.training.export import export_rows
from acmserve.training.record import read_rollout

SERVED = "learner"
_SUITE_FLAGS = ("--suite", str(SUITE_FILE))
_SAVE_EVERY = 4
_NUM_CHECKED = 8
"""Tasks on which policies are checked that nobody learns from."""


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A folder that can be served, and the loss of each step that made it. The untrained one has none."""

    name: str
    folder: Path
    losses: tuple[float, ...] = ()


def count_tokens_by(folder: Path) -> Callable[[str], int]:
    """Counts tokens as the model of a folder does."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


def recipe_digest(policies: tuple[str, ...], num_tasks: int) -> str:
    """Of all that is said in the scripted sessions, of their limits, and of the words of the tools."""
    digest = hashlib.sha256(SUITE_FILE.read_bytes())
    for task in training_tasks(num_tasks, count_tokens_by(prepare()), 0):
        told = [task.turns, *(session_script(task, POLICIES[policy].decide(task)) for policy in policies)]
        digest.update(json.dumps([told, task.max_tokens]).encode())
    return digest.hexdigest()[:16]


def write_rows(work: Path, policies: tuple[str, ...], num_tasks: int) -> None:
    """Play the training tasks by each scripted policy, and export the records. What is there is kept.

    Raises AcmError where a session did not earn what its policy has to.
    """
    missing = [policy for policy in policies if not (work / f"{policy}.jsonl").exists()]
    if not missing:
        return
    with scripted_server(TINY, more_flags=_SUITE_FLAGS) as (url, _), closing(SessionPlayer(url, MODEL)) as player:
        tasks = training_tasks(num_tasks, count_tokens_by(prepare()), player.count_prompt())
        for name, policy in POLICIES.items():
            some = tasks if name in missing else tasks[:_NUM_CHECKED]
            progress(f"{name}: {len(some)} scripted sessions")
            played = player.play_all(name, some, policy.decide)
            for task, one in zip(some, played, strict=True):
                check_reward(name, task, one.reward)
            if name in missing:
                rollouts = [read_rollout(one.record.splitlines()) for one in played]
                rows = [json.dumps(row) for row in export_rows(rollouts, "sft")]
                write_whole(work / f"{name}.jsonl", "\n".join(rows) + "\n")


def train(work: Path, policy: str, options: SftOptions, base: Path) -> TrainedModel:
    """Train the model of `base` on the rows of a policy. Goes on where it was cut off."""
    folder, losses = work / policy, work / f"{policy}-losses.json"
    if not (folder / "config.json").exists():
        model = load_float32(base)
        run = SftRun(model, read_rows(work / f"{policy}.jsonl"), options, work / f"{policy}.pt")
        for done in run.steps():
            if done.num_steps % _SAVE_EVERY == 0 or done.num_steps == options.num_steps:
                run.save()
                left = (options.num_steps - done.num_steps) * done.seconds / done.num_steps / 60
                progress(f"{policy}: step {done.num_steps}, loss {done.losses[-1]:.3f}, {left:.0f} minutes to go")
        part = work / f"{policy}.part"
        shutil.rmtree(part, ignore_errors=True)
        model.save_pretrained(part)
        AutoTokenizer.from_pretrained(base).save_pretrained(part)
        write_whole(losses, json.dumps([round(loss, 4) for loss in run.progress.losses]))
        part.replace(folder)
        (work / f"{policy}.pt").unlink(missing_ok=True)
    with kept_entries(losses, f"Remove {folder}, and the model is trained again."):
        return TrainedModel(policy, folder, tuple(map(float, json.loads(losses.read_text(encoding="utf-8")))))


@contextmanager
def served(model: TrainedModel) -> Iterator[SessionPlayer]:
    """The model behind `acmserve serve`, with the tools of the suite and a loop that it decides in itself."""
    flags = [
        *("--served-model-name", SERVED, "--dtype", "float32", "--max-model-len", "8192"),
        *("--chat-template", str(TOOLS_TEMPLATE), "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *_SUITE_FLAGS,
    ]
    progress(f"{model.name}: starting its server (about half a minute)")
    with (
        ServerProcess(model.folder, flags, kv_gib=1) as server,
        closing(SessionPlayer(server.wait_ready(), SERVED)) as player,
    ):
        yield player
