"""`bench trace` against a real server: the same prompts under both fidelities, and as any OpenAI-compatible server."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer

from acmserve.bench.agent.plain_prompt import PromptWriter
from acmserve.bench.agent.recording import RecordedStep, Recording
from acmserve.bench.trace.load import PlannedSession, ReplayRates, run_load
from acmserve.bench.trace.peer_servers import Peer
from acmserve.bench.trace.prompts import Limits, Prompt, plan_prompts
from acmserve.bench.trace.score import NOT_COMPARED, ReplayCell, check_cell, prompt_notes
from acmserve.bench.trace.servers import first_model
from acmserve.bench.trace.table import TOO_FEW, as_report
from acmserve.models.smollm2 import TOOLS_TEMPLATE
from acmserve.server.models.tokenizer import ServedTokenizer

LIMITS = Limits(700, 420)


def conversation(name: str, num_steps: int = 8) -> Recording:
    """Answers of about a hundred tokens, all different."""

    def answer(number: int) -> dict[str, str]:
        return {"role": "assistant", "content": " ".join(f"{name} {number}.{line} is done." for line in range(14))}

    asked = {"role": "user", "content": "Go on."}
    steps = [RecordedStep(({"role": "system", "content": "You count."}, asked))]
    steps += [RecordedStep((answer(number), asked)) for number in range(num_steps)]
    return Recording(name, (), tuple(steps))


def test_sessions_are_replayed_and_judged(scripted_server: str, smollm2_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    writer = PromptWriter(tokenizer, TOOLS_TEMPLATE.read_text(encoding="utf-8"))
    served = ServedTokenizer(tokenizer)
    recordings = [conversation("first"), conversation("second")]
    sessions = []
    for number, recording in enumerate(recordings):
        prompts = plan_prompts(recording, "recency", LIMITS, writer, served)
        sessions.append(PlannedSession(recording.name, f"{number:08d}", tuple(prompts), LIMITS.max_tokens))
    model = first_model(scripted_server)
    peers = [Peer("exact"), Peer("reuse"), Peer(scripted_server)]
    loads = [run_load(scripted_server, peer, sessions, ReplayRates(scale=0, max_tokens=2), model) for peer in peers]
    cells = [ReplayCell(peer, "recency", (load,)) for peer, load in zip(peers, loads, strict=True)]
    assert [check_cell(cell) for cell in cells] == [[], [], []]
    assert prompt_notes(cells) == []
    report = as_report(cells)
    assert report["notes"] == [NOT_COMPARED, TOO_FEW.format(1)]
    exact, reuse, other = report["rows"]
    assert exact["num_turns"] == reuse["num_turns"] == other["num_turns"] == 16
    assert exact["num_edits"] >= 2
    assert exact["moved_tokens"] == 0
    assert other["computed_tokens"] >= exact["computed_tokens"], "a peer says in its usage what it kept"
    assert reuse["moved_tokens"] > 100
    assert reuse["computed_tokens"] + 100 < exact["computed_tokens"]


def test_what_a_server_refuses_turns_the_gate_red(scripted_server: str) -> None:
    prompt = Prompt(({"role": "system", "content": "Session 00000000."},), (1, 2), False, False, 0.0)
    session = PlannedSession("refused", "00000000", (prompt, prompt), LIMITS.max_tokens)
    load = run_load(scripted_server, Peer("reuse"), [session], ReplayRates(scale=0, max_tokens=2), "no-such-model")
    (failure,) = check_cell(ReplayCell(Peer("reuse"), "none", (load,)))
    assert "0 of 1 turns were answered. RuntimeError: HTTP 404" in failure
