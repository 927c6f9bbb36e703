"""Rows of each format, rebuilt into what was sampled. The trainers' own classes read them where they are there."""

from __future__ import annotations

import ast
import importlib.util
import math
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import pytest
from pydantic import BaseModel

from acmserve.errors import IntegrityError, InvalidRequest, MalformedRecord, NotFound
from acmserve.training.collection import ALGORITHMS
from acmserve.training.credit import Credits, give_credit
from acmserve.training.export import export_rows
from acmserve.training.formats import FORMATS
from acmserve.training.judgement import read_judgements
from acmserve.training.record import read_rollout
from acmserve.training.rollout import Rollout
from tests.support.training.sessions import HEADER, Session, random_session, single_sessions


def sessions(num: int = 20) -> list[Session]:
    return [random_session(seed) for seed in range(num)]


def rollouts(of: list[Session]) -> list[Rollout]:
    return [read_rollout(session.record()) for session in of]


def sampled(of: list[Session]) -> Counter[int]:
    return Counter(token for session in of for one in session.completions for token in one.token_ids)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", FORMATS)
def test_each_row_has_aligned_lists_and_all_rows_train_each_token_once(name: str, algorithm: Any) -> None:
    made = sessions()
    trained: Counter[int] = Counter()
    for row in export_rows(rollouts(made), name, algorithm):
        if name == "sft":
            assert [a for a, b in zip(row["input_ids"], row["labels"], strict=True) if b not in (a, -100)] == []
            trained.update(label for label in row["labels"] if label != -100)
            continue
        ids, mask, logprobs = {
            "jsonl": ("input_ids", "loss_mask", "logprobs"),
            "trl": ("completion_ids", "env_mask", "logprobs"),
            "verl": ("response_ids", "response_mask", "response_logprobs"),
        }[name]
        if name != "jsonl":
            assert row["prompt_ids"]
            assert row[mask][0] == row[mask][-1] == 1
        for token, one, logprob in zip(row[ids], row[mask], row[logprobs], strict=True):
            assert logprob == (-(token % 97) / 8 if one else 0)
            trained[token] += one
    assert +trained == sampled(made)


def credit_of(lines: list[str], of: list[Rollout], **options: Any) -> list[Credits]:
    return give_credit(of, read_judgements(lines), **options)


REWARDS = [
    '{"session_id": "session-0", "correct": true, "group": "q"}',
    '{"session_id": "session-1", "correct": false, "group": "q"}',
    '{"session_id": "session-2", "reward": 0.5}',
]


def test_rewards_and_advantages_are_on_every_sample_of_a_rollout() -> None:
    read = rollouts(single_sessions(3))
    credit = credit_of(REWARDS, read)
    assert [{one.reward for one in each.values()} for each in credit] == [{1.0}, {0.0}, {0.5}]
    rows = list(export_rows(read, "jsonl", "paper", credit))
    found = {row["session_id"]: (row["reward"], row.get("group"), row.get("advantage")) for row in rows}
    half = 0.5**0.5
    assert found == {
        "session-0": (1.0, "q", pytest.approx(half)),
        "session-1": (0.0, "q", pytest.approx(-half)),
        "session-2": (0.5, None, None),
    }
    verl = next(export_rows(read, "verl", "paper", credit))
    assert verl["reward_score"] == 1.0
    assert verl["extra_fields"]["advantage"] == pytest.approx(half)
    right = export_rows(read, "sft", "prefix", credit, min_reward=1)
    assert len(list(right)) == len(list(export_rows(read[:1], "sft")))


def test_samples_of_one_prompt_are_rollouts_of_their_own() -> None:
    session = Session(random.Random(0))
    context = [session.text()]
    first = session.serve(context, num_tokens=2)
    context += [[*HEADER, *first.token_ids], session.text()]
    for sample in range(3):
        thread = f"main#{sample}" if sample else "main"
        session.serve(context, thread=thread, parent=0, sample=sample, format_error="no JSON" if sample == 2 else None)
    lines = [
        '{"session_id": "session", "correct": true, "group": "q"}',
        '{"session_id": "session", "thread": "main#1", "correct": false, "group": "q"}',
        '{"session_id": "session", "thread": "main#2", "correct": true, "group": "q"}',
    ]
    read = rollouts([session])
    rows = list(export_rows(read, "jsonl", "prefix", credit_of(lines, read)))
    assert {tuple(row["completions"]): (row["reward"], row["advantage"]) for row in rows} == {
        (0, 1): (1.0, 1.0),
        (2,): (0.0, 0.0),
        (3,): (-1.0, -1.0),
    }
    right = export_rows(read, "jsonl", "prefix", credit_of(lines, read), min_reward=0)
    assert [row["completions"] for row in right] == [[0, 1], [2]]
    with pytest.raises(NotFound, match="name thread 'main#7', which session 'session' lacks"):
        credit_of([*lines, lines[1].replace("#1", "#7")], read)
    with pytest.raises(NotFound, match="no line for session 'session'"):
        credit_of(lines[1:], read)
    with pytest.raises(NotFound, match="no line for thread 'main#2' of session 'session'"):
        credit_of(lines[:2], read)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("options", [{}, {"context_limit": 1000}], ids=["gspo", "fold-grpo"])
def test_a_conversation_that_goes_on_from_another_sample_leaves_it_its_own_reward(
    algorithm: Any, options: dict[str, Any]
) -> None:
    """One row had the tokens of both, and the reward of the first: a wrong answer was trained as a right one."""
    session = Session(random.Random(0))
    context = [session.text()]
    session.serve(context)
    other = session.serve(context, thread="main#1", sample=1)
    session.serve([*context, [*HEADER, *other.token_ids], session.text()], parent=1)
    lines = [
        '{"session_id": "session", "thread": "main", "correct": true, "group": "q"}',
        '{"session_id": "session", "thread": "main#1", "correct": false, "group": "q"}',
    ]
    read = rollouts([session])
    earned = credit_of(lines, read, **options)
    rows = list(export_rows(read, "jsonl", algorithm, earned))
    rewards = {tuple(row["completions"]): row["reward"] for row in rows}
    assert rewards == {(0,): 1.0, (1,): 0.0, (2,): 1.0}
    right = export_rows(read, "jsonl", algorithm, earned, min_reward=1)
    assert [row["completions"] for row in right] == [[0], [2]]
    alike = credit_of([line.replace("false", "true") for line in lines], read, **options)
    assert [row["completions"] for row in export_rows(read, "jsonl", algorithm, alike)] == [[0], [1, 2]], "the control"


def test_a_line_that_is_about_no_completion_is_named() -> None:
    """It was a member of its group, and shifted the mean of the others."""
    session = Session(random.Random(0))
    context = [session.text()]
    session.serve(context)
    session.serve(context, thread="main#1", sample=1)
    lines = [
        '{"session_id": "session", "thread": "main", "correct": true, "group": "q"}',
        '{"session_id": "session", "thread": "main#1", "correct": true, "group": "q"}',
    ]
    read = rollouts([session])
    assert [credit.advantage for credit in credit_of(lines, read)[0].values()] == [0.0, 0.0]
    with pytest.raises(NotFound, match="a line for session 'session' that is about nothing"):
        credit_of([*lines, '{"session_id": "session", "correct": false, "group": "q"}'], read)


@pytest.mark.parametrize(("name", "ids"), [("jsonl", "input_ids"), ("trl", "completion_ids")])
def test_fold_grpo_gives_each_token_the_advantage_of_its_turn(name: str, ids: str) -> None:
    session = Session(random.Random(0), "session-0")
    opened = session.serve([[1] * 30], [("branch", "branch")], num_tokens=2)
    session.serve([[1] * 30, [*HEADER, *opened.token_ids]], parent=0, num_tokens=3)
    other = Session(random.Random(1), "session-1")
    other.serve([[1] * 3])
    read = rollouts([session, other])
    rows = list(export_rows(read, name, "prefix", credit_of(REWARDS[:2], read, context_limit=40)))
    half = 0.5**0.5
    assert len(rows[0]["advantages"]) == len(rows[0][ids])
    nonzero = [value for value in rows[0]["advantages"] if value]
    assert nonzero == pytest.approx([half] * 2 + [-half] * 3)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"session_id": "a"}', "line 1, field correct: or reward must be there, and not both"),
        ('{"session_id": "a", "correct": true, "reward": 1}', "not both"),
        ('{"session_id": "a", "correct": 1}', "field correct: must be true or false, not 1"),
        ('{"session_id": "a", "reward": NaN}', "field reward: must be a finite number, not nan"),
        ('{"session_id": "a", "reward": 1, "group": 7}', "field group: must be a string, not 7"),
        ('{"session_id": "a", "reward": 1, "out_of_scope": "b"}', "field out_of_scope: must be an array"),
        ('{"session_id": "a", "reward": 1, "failed": ["b"]}', "field failed: must be an array of numbers"),
        ('{"session_id": "a", "reward": 1, "thread": 0}', "field thread: must be a string, not 0"),
        ('{"session_id": "a", "rewards": 1}', "field rewards: is unknown"),
        ('{"correct": true}', "field session_id: must be a string, not None"),
        ("[]", "line 1: must be an object"),
        ("{", "line 1: is no JSON"),
    ],
)
def test_a_wrong_line_of_rewards_is_named(line: str, said: str) -> None:
    with pytest.raises(MalformedRecord) as found:
        read_judgements([line])
    assert said in str(found.value)


def test_rewards_that_do_not_match_the_rollouts_are_named() -> None:
    with pytest.raises(MalformedRecord, match="line 2, field session_id: 'session-0' has an earlier line"):
        read_judgements(REWARDS[:1] * 2)
    with pytest.raises(NotFound, match="no line for session 'session-1'"):
        credit_of(REWARDS[:1], rollouts(single_sessions(2)))


def test_trl_needs_logprobs_and_says_so() -> None:
    lines = [line.replace('"logprobs": [', '"logprobs": null, "was": [') for line in sessions(1)[0].record()]
    with pytest.raises(InvalidRequest, match=r"session 'session-0', completions .* TRL needs them"):
        list(export_rows([read_rollout(lines)], "trl"))
    assert all(row["logprobs"] is None for row in export_rows([read_rollout(lines)], "jsonl"))


def test_what_cannot_be_exported_is_named() -> None:
    with pytest.raises(InvalidRequest, match="format: must be 'jsonl' or 'trl' or 'verl' or 'sft', not 'csv'"):
        list(export_rows([], "csv"))
    with pytest.raises(InvalidRequest, match="min_reward: needs rewards"):
        list(export_rows([], "jsonl", min_reward=1))
    for wrong in (math.nan, math.inf):
        with pytest.raises(InvalidRequest, match="min_reward: must be a finite number, not "):
            list(export_rows([], "jsonl", earned=[], min_reward=wrong))


def test_an_export_that_would_train_a_token_twice_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from acmserve.training import collection, export

    monkeypatch.setattr(export, "collect", lambda *call: [*collection.collect(*call), *collection.collect(*call)])
    with pytest.raises(IntegrityError, match="trained 2 times"):
        list(export_rows(rollouts(sessions(1)), "jsonl"))


def test_verl_reads_its_rows() -> None:
    """verl's own class, taken out of its source: importing verl would start ray."""
    found = importlib.util.find_spec("verl")
    if found is None or not found.submodule_search_locations:
        pytest.skip("verl is not installed")
    source = Path(found.submodule_search_locations[0], "experimental/agent_loop/agent_loop.py").read_text("utf-8")
    wanted = ("AgentLoopMetrics", "AgentLoopOutput")
    classes = [one for one in ast.parse(source).body if isinstance(one, ast.ClassDef) and one.name in wanted]
    import torch

    names: dict[str, Any] = {"BaseModel": BaseModel, "Optional": Optional, "Any": Any, "torch": torch}
    exec(compile(ast.Module(classes, []), "verl", "exec", dont_inherit=True), names)
    read = rollouts(single_sessions(3))
    for row in export_rows(read, "verl", "prefix", credit_of(REWARDS, read)):
        batch = names["AgentLoopOutput"](**row).as_dict()
        assert set(row) <= set(names["AgentLoopOutput"].model_fields)
        assert batch["response_mask"].tolist() == row["response_mask"]
        assert batch["rollout_log_probs"].tolist() == pytest.approx(row["response_logprobs"])
        assert batch["rm_scores"][-1] == row["reward_score"]


@pytest.mark.filterwarnings("ignore")
def test_trl_computes_the_same_loss_of_its_rows() -> None:
    """TRL's own `_compute_loss`, with log-probabilities given instead of a model."""
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    import torch

    from acmserve.training.losses.gspo import gspo_loss

    read = rollouts(single_sessions(3))
    rows = [row for row in export_rows(read, "trl", "prefix", credit_of(REWARDS, read)) if "advantage" in row]
    size = max(len(row["completion_ids"]) for row in rows)

    def pad(name: str) -> Any:
        return torch.tensor([row[name] + [0] * (size - len(row[name])) for row in rows])

    old, mask = pad("logprobs").double(), pad("env_mask")
    advantages = torch.tensor([row["advantage"] for row in rows], dtype=torch.float64)
    new = old + 0.01 * torch.randn(old.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    settings = {"importance_sampling_level": "sequence", "loss_type": "grpo", "beta": 0.0, "top_entropy_quantile": 1.0}
    settings |= {"epsilon_low": 0.0003, "epsilon_high": 0.0004, "off_policy_mask_threshold": None, "use_vllm": False}
    settings |= {"_entropy_bonus_enabled": False, "aux_loss_enabled": False, "num_generations": 2}
    trainer: Any = SimpleNamespace(
        **settings,
        model=SimpleNamespace(training=False),
        args=SimpleNamespace(delta=None),
        accelerator=SimpleNamespace(gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1),
        _metrics={"eval": __import__("collections").defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (new, torch.zeros_like(new), None),
    )
    inputs = {"prompt_ids": mask[:, :0], "prompt_mask": mask[:, :0], "completion_ids": pad("completion_ids")}
    inputs |= {"completion_mask": torch.ones_like(mask), "tool_mask": mask, "advantages": advantages}
    inputs |= {"old_per_token_logps": old}
    theirs = trl.GRPOTrainer._compute_loss(trainer, None, inputs)
    torch.testing.assert_close(gspo_loss(new, old, mask, advantages), theirs, rtol=1e-9, atol=1e-12)
