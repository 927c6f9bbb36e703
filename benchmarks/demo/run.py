"""Runs the demo: one engine, four sequences side by side, the same prompts for all of them.

    reuse          a session with fidelity "reuse"
    exact          a session with fidelity "exact"
    stock engine   the same requests without a session id: what vLLM's own prefix caching makes of them
    plain append   a session that had the whole prompt but its new tokens before, and never saw an edit: the floor

Each has a cache salt of its own, so none finds KV of another. Times are single measurements of vLLM's own time to first
token (`harness/engine.py`). `acmserve bench edit` is the one that repeats and checks. The demo knows nothing of engine
internals.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from acmserve.bench.demo.conversation import DemoReplay, Tokens, TurnPrompt, load, plan_replay
from acmserve.bench.demo.table import Cost, TurnCosts, as_rows, result_sentence
from acmserve.bench.harness.engine import Ask, EngineReply, LocalEngine
from acmserve.bench.harness.machine import describe_machine, one_line
from acmserve.bench.harness.run_log import progress
from acmserve.bench.provenance.kept_file import write_whole
from acmserve.errors import AcmError

MAX_MODEL_LEN = 8192
ANSWER_TOKENS = 24
APPEND = "plain append"
STOCK = "stock engine"
SEQUENCES = ("reuse", "exact", STOCK, APPEND)


def run_demo(model: Path | None = None, json_file: Path | None = None) -> None:
    """Play the bundled conversation and print what each turn cost. Raises AcmError when the engine cannot start."""
    conversation = load()
    print(
        f'An agent conversation ("{conversation.title}") on a real engine:\n'
        "a tool result in its middle is folded, the talk goes on, the result is restored. For each turn you see\n"
        "how many prompt tokens were kept, moved and computed, and the time to first token, next to a plain append\n"
        "of as many new tokens and a stock engine. Answers are the model's own, at temperature 0, cut\n"
        f"after {ANSWER_TOKENS} tokens.\n"
    )
    folder = _prepared(model)
    machine = describe_machine()
    progress("starting the engine (about 15 to 40 s)")
    engine = LocalEngine(folder, with_acmserve=True, max_model_len=MAX_MODEL_LEN)
    try:
        replay = plan_replay(conversation, engine.tokenizer)
        print(f"machine: {one_line(machine)}\nmodel:   {folder.name}\n")
        costs = _play(engine, replay)
    finally:
        engine.close()
    sentence = result_sentence(costs)
    print(sentence)
    if json_file is not None:
        report = {
            "machine": machine,
            "model": folder.name,
            "conversation": {
                "title": conversation.title,
                "tokens": len(replay.warm),
                "folded_tokens": replay.num_folded_tokens,
                "marker": replay.marker,
            },
            "turns": [asdict(turn) for turn in costs],
            "result": sentence,
        }
        write_whole(json_file, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        progress(f"numbers written to {json_file}")


def _prepared(model: Path | None) -> Path:
    if model is None:
        from acmserve.models.smollm2 import prepare

        return prepare(progress=progress)
    if not (model / "config.json").is_file():
        raise AcmError(f"{model} is not a Hugging Face folder (no config.json in it); name one that is")
    return model.absolute()


def _play(engine: LocalEngine, replay: DemoReplay) -> list[TurnCosts]:
    engine.ask(Ask(replay.warm[:64], salt="warm-up"))
    for name in (name for name in SEQUENCES if name != APPEND):
        progress(f"reading the conversation so far, {len(replay.warm):,} tokens, for: {name}")
        _ask(engine, name, replay.warm, max_tokens=1)
    costs = []
    for number, prompt in enumerate(replay.prompts, start=1):
        progress(f"turn {number} of {len(replay.prompts)}: {prompt.turn.name}")
        costs.append(_play_turn(engine, number, prompt))
        print("\n".join(as_rows(costs[-1])) + "\n", flush=True)
    return costs


def _play_turn(engine: LocalEngine, number: int, prompt: TurnPrompt) -> TurnCosts:
    _ask(engine, APPEND, prompt.tokens[: -prompt.num_new_tokens], max_tokens=1)
    replies = {name: _ask(engine, name, prompt.tokens, ANSWER_TOKENS) for name in SEQUENCES}
    return TurnCosts(
        number=number,
        name=prompt.turn.name,
        question=prompt.turn.user,
        num_prompt_tokens=len(prompt.tokens),
        num_new_tokens=prompt.num_new_tokens,
        costs={name: _cost(reply, len(prompt.tokens)) for name, reply in replies.items()},
    )


def _ask(engine: LocalEngine, name: str, tokens: Tokens, max_tokens: int) -> EngineReply:
    session = None if name == STOCK else f"demo {name}"
    fidelity = "reuse" if name == "reuse" else "exact"
    return engine.ask(Ask(tokens, f"demo {name}", session, fidelity, max_tokens))


def _cost(reply: EngineReply, num_prompt_tokens: int) -> Cost:
    """From the receipt, or for a request without session from vLLM's count of cached tokens."""
    receipt = reply.receipt
    kept = receipt["kept_tokens"] if receipt else reply.cached_tokens
    moved = receipt["moved_tokens"] if receipt else 0
    return Cost(
        num_kept=kept,
        num_moved=moved,
        num_computed=num_prompt_tokens - kept - moved,
        first_token_s=reply.first_token_s,
        answer=" ".join(reply.text.split()),
        fallback_reason=receipt["fallback_reason"] if receipt else None,
    )
