"""`acmserve export`: rollout records become training samples. Records are files, addresses of a server, or stdin.

Decision: rows go to stdout as they are made, or to a file that appears when the last row is in it. A trainer never
finds half of one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from acmserve.cli.command import Command, add_api_key_flag
from acmserve.errors import AcmError, InvalidRequest, MalformedRecord
from acmserve.training.collection import ALGORITHMS, check_algorithm
from acmserve.training.credit import give_credit
from acmserve.training.export import export_rows
from acmserve.training.formats import FORMATS
from acmserve.training.judgement import read_judgements
from acmserve.training.record import read_rollout
from acmserve.training.reward import RewardLimits
from acmserve.training.rollout import Rollout

_SECONDS = 60.0
_EPILOG = """\
rewards, a line of JSON for each session:
  {"session_id": "a", "correct": true, "group": "question-7"}
  {"session_id": "b", "reward": 0.5, "group": "question-7"}

`correct` becomes a reward: 1 when right, 0 when wrong, and -1 in any case with a format error, too many tool calls or
too many tokens. Sessions of one group had one question, and get advantages. Where a prompt was sampled several times,
a line with "thread": "main#1" is for one sample. For --fold-grpo, "out_of_scope": ["branch-1"] names the branches that
left their task, and "failed": [4] the completions whose tool call failed.

examples:
  acmserve export rollout.jsonl                                        everything, on stdout
  acmserve export a.jsonl b.jsonl --rewards rewards.jsonl --format trl --output train.jsonl
  acmserve export *.jsonl --rewards rewards.jsonl --min-reward 1 --format sft --output right.jsonl
"""


def _add_flags(export: argparse.ArgumentParser) -> None:
    defaults = RewardLimits()
    export.formatter_class = argparse.RawDescriptionHelpFormatter
    export.epilog = _EPILOG
    formats = "; ".join(f"{name}: {one.summary}" for name, one in FORMATS.items())
    export.add_argument("records", nargs="+", metavar="RECORD", help="a file, a URL of a server, or - for stdin")
    export.add_argument("--format", choices=list(FORMATS), default="jsonl", help=formats)
    export.add_argument(
        "--algorithm",
        choices=ALGORITHMS,
        default="prefix",
        help="where a sample ends. paper: at each call that edits the context, Algorithm 1 word for word; prefix: only "
        "where the next prompt begins differently, so fewer samples carry the same losses (default)",
    )
    export.add_argument("--output", type=Path, metavar="FILE", help="write there instead of stdout")
    export.add_argument("--rewards", type=Path, metavar="FILE", help="what each session earned, see below")
    export.add_argument("--min-reward", type=float, metavar="R", help="leave out samples that earned less")
    export.add_argument(
        "--max-tools", type=int, default=defaults.max_calls, metavar="N", help="more calls earn -1 (%(default)s)"
    )
    export.add_argument(
        "--max-tokens", type=int, default=defaults.max_tokens, metavar="N", help="more tokens earn -1 (%(default)s)"
    )
    export.add_argument(
        "--fold-grpo",
        type=int,
        metavar="TOKENS",
        help="process rewards for branches, with a working context of TOKENS: an advantage for each token",
    )
    add_api_key_flag(export, "for a URL")


def _run(parsed: argparse.Namespace) -> int:
    if parsed.rewards is None and (parsed.min_reward is not None or parsed.fold_grpo is not None):
        raise InvalidRequest("--rewards", "is missing, and --min-reward and --fold-grpo need it")
    rollouts = [_read(name, parsed.api_key) for name in parsed.records]
    ids = [rollout.session_id for rollout in rollouts]
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise InvalidRequest("RECORD", f"session {twice!a} is given twice")
    earned = None
    if parsed.rewards is not None:
        with _naming(str(parsed.rewards)), _open(parsed.rewards) as lines:
            judgements = read_judgements(lines)
        limits = RewardLimits(parsed.max_tools, parsed.max_tokens)
        earned = give_credit(rollouts, judgements, limits, parsed.fold_grpo)
    rows = export_rows(rollouts, parsed.format, check_algorithm(parsed.algorithm), earned, parsed.min_reward)
    num_rows = 0
    with _writer(parsed.output) as out:
        for num_rows, row in enumerate(rows, 1):  # noqa: B007
            out.write(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n")
    tokens = sum(len(one.token_ids) for rollout in rollouts for one in rollout.completions.values())
    print(f"{len(rollouts)} sessions, {tokens} sampled tokens, {num_rows} samples", file=sys.stderr)
    return 0


def _read(name: str, api_key: str | None) -> Rollout:
    with _naming(name):
        if name == "-":
            return read_rollout(sys.stdin)
        if name.startswith(("http://", "https://")):
            return read_rollout(_fetch(name, api_key))
        with _open(Path(name)) as lines:
            return read_rollout(lines)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Put the name of the file in front of what is wrong with one of its lines."""
    try:
        yield
    except MalformedRecord as error:
        raise AcmError(f"{name}, {error}") from error
    except UnicodeDecodeError as error:
        raise AcmError(f"{name} is no UTF-8 text ({error.reason} at byte {error.start})") from error


def _fetch(url: str, api_key: str | None) -> Iterator[str]:
    import httpx

    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        with httpx.stream("GET", url, headers=headers, timeout=_SECONDS) as answer:
            if answer.status_code != httpx.codes.OK:
                said = answer.read().decode("utf-8", "replace")[:200]
                raise AcmError(f"{url} answered {answer.status_code}: {said}")
            yield from answer.iter_lines()
    except httpx.HTTPError as error:
        raise AcmError(f"{url} cannot be read: {error}") from error
    except httpx.InvalidURL as error:
        raise AcmError(f"{url} is no address: {error}") from error


def _open(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8")
    except OSError as error:
        raise AcmError(f"{path} cannot be read: {error.strerror}") from error


@contextlib.contextmanager
def _writer(path: Path | None) -> Iterator[TextIO]:
    """Stdout, or a file that replaces `path` when all is written, and never else."""
    if path is None:
        yield sys.stdout
        return
    if path.is_dir():
        raise AcmError(f"{path} cannot be written: it is a folder. Name a file.")
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("w", encoding="utf-8") as out:
            yield out
        part.replace(path)
    except OSError as error:
        raise AcmError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


EXPORT = Command(
    "turn rollout records into training samples for TRL, verl or your own trainer",
    _run,
    "Turns the records of sessions into training samples. Every sampled token is trained exactly once, behind the "
    "prompt that it was served with, however the context was edited in between.",
    _add_flags,
)
