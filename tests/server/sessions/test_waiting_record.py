"""The rollout record of edits that wait: when each was accepted, when it took effect, and what can be trained on."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from acmserve.context.session.rollout.lines import rollout_lines
from acmserve.training.collection import ALGORITHMS, collect
from acmserve.training.record import read_rollout
from acmserve.training.rollout import Rollout
from tests.support.commits.folding_client import NUM_FRAGMENTS, FoldingClient
from tests.support.routes.stand_in_model import call, said
from tests.support.training.samples import cover

NUM_SESSIONS = 25
SEARCH = call("search_context", "s1", query="number 7 of", max_results=1, context_size=50)
BRANCH = call("branch", "b1", description="read", prompt="Read on.")
RETURN = call("return", "r1", message="It says nothing.")


def random_steps(client: FoldingClient, draw: random.Random) -> list[dict[str, Any]]:
    """What the model says in one turn: edits of one or several fragments a step, searches, at times a branch."""
    steps = []
    for number in range(draw.randint(1, 6)):
        calls = []
        for _ in range(draw.choice([1, 1, 1, 2])):
            name = draw.choice(["fold_fragment"] * 4 + ["restore_fragment"])
            calls.append(call(name, f"c{number}-{len(calls)}", fragment_id=draw.choice(client.ids)))
        steps.append(said(None, *(calls if draw.random() < 0.7 else [SEARCH])))
        if draw.random() < 0.1:
            steps += [said(None, BRANCH), said("Reading.", calls[0]), said(None, RETURN)]
    return [*steps, said("Done.")]


def random_client(seed: int) -> FoldingClient:
    draw = random.Random(seed)
    client = FoldingClient()
    for _ in range(draw.randint(1, 3)):
        client.ask(*random_steps(client, draw))
        client.say("Go on.")
    return client


def recorded(client: FoldingClient) -> Rollout:
    rollout = read_rollout(json.dumps(line) for line in rollout_lines(client.session.state.rollout, "s"))
    rollout.check_integrity()
    return rollout


def check_places(client: FoldingClient, rollout: Rollout, *, without: str = "") -> int:
    """What each prompt showed is what the operations in front of it say. Returns how many edits took effect late."""
    state = client.session.state
    first_words = {f.fragment_id: state.fragment_text(f)[:40] for f in state.fragments[:NUM_FRAGMENTS]}
    accepted: dict[str, int] = {}
    hidden: set[str] = set()
    num_late = 0
    asked = [request for model in client.models for request in model.requests]
    for number, request in enumerate(asked):
        for operation in rollout.operations:
            if operation.after != number - 1 or operation.name == without:
                continue
            names = operation.arguments.get("fragment_ids") or [operation.arguments.get("fragment_id")]
            assert isinstance(names, list)
            if operation.name == "fold_fragment":
                accepted[names[0]] = operation.after
            elif operation.name == "restore_fragment":
                hidden.discard(names[0])
            elif operation.name == "commit":
                num_late += sum(accepted[name] < operation.after for name in names)
                hidden |= set(names)
        shows = {name for name, words in first_words.items() if words in request.messages[0]["content"]}
        assert shows == first_words.keys() - hidden, number
    return num_late


def test_a_record_says_when_edits_were_accepted_and_when_they_took_effect() -> None:
    num_late = 0
    for seed in range(NUM_SESSIONS):
        client = random_client(seed)
        rollout = recorded(client)
        served = [prompt for model in client.models for prompt in model.prompts]
        assert [rollout.prompt_ids(number).tolist() for number in rollout.completions] == served
        for algorithm in ALGORITHMS:
            cover(rollout, collect(rollout, algorithm))
        num_late += check_places(client, rollout)
    assert num_late > NUM_SESSIONS


def test_a_record_without_its_commits_would_not_say_it() -> None:
    """The control."""
    client = FoldingClient()
    client.ask(client.fold(0), client.fold(1), said("Done."))
    client.say("Go on.")
    client.ask(said("Fine."))
    rollout = recorded(client)
    assert check_places(client, rollout) == 2
    with pytest.raises(AssertionError):
        check_places(client, rollout, without="commit")
    told = [one for one in rollout.operations if one.name == "commit"]
    assert [(one.by, one.arguments, one.saved_tokens) for one in told] == [
        ("policy", {"fragment_ids": client.ids[:2], "reason": "turn_end"}, None)
    ]
