"""Receipts of recorded results, asked for again: vLLM's real scheduler and block pool, and no model.

    recorded receipt --as_recorded--> the prompt with its very equalities --receipts_of--> what today's code says

How many tokens are kept, moved and computed is decided by which tokens are equal, and not by what they say. So text is
replaced by numbers. A marker that began as the removed text did made a receipt one token longer: that is put back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.simulator.machine import Factory, Machine
from tests.support.simulator.scripts import Script, Tokens, Turn
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.truth import FIRST_IMAGE, OUTPUT_TOKENS

BLOCK_SIZE = 128
"""vLLM's own on a CPU, where all of these results were measured."""
COUNTS = ("prompt_tokens", "kept_tokens", "moved_tokens", "computed_tokens", "repaired_tokens")
_CHUNK_TOKENS = 4096
WORDS = tuple(token for token in range(1, FIRST_IMAGE) if token not in OUTPUT_TOKENS)
"""What a text may be made of: no answer of the simulated model, and no image."""


def as_recorded(prompt: Tokens, context: Tokens, receipt: Mapping[str, Any]) -> Tokens:
    """`prompt` where it equals the context as far as the receipt says that it did."""
    found = list(prompt)
    found[: receipt["kept_tokens"]] = context[: receipt["kept_tokens"]]
    for move in receipt["moves"]:
        num, dst, src = move["num_tokens"], move["dst_start"], move["src_start"]
        found[dst : dst + num] = context[src : src + num]
    return tuple(found)


def receipts_of(
    factory: Factory,
    prompts: Sequence[Tokens],
    fidelity: Any,
) -> list[dict[str, Any]]:
    """Of one session that sends these prompts one behind the other."""
    num_blocks = 4 * sum(-(-len(prompt) // BLOCK_SIZE) + 1 for prompt in prompts)
    machine = Machine(
        *(False, False),
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        max_num_batched_tokens=_CHUNK_TOKENS,
        connector={},
    )
    turns = tuple(
        Turn(
            f"r{number}",
            prompt,
            1,
            session="s",
            fidelity=fidelity,
            after=f"r{number - 1}" if number else None,
        )
        for number, prompt in enumerate(prompts)
    )
    simulation = Simulation(Script(0, machine, turns), factory)
    simulation.run()
    return [simulation.receipts[turn.request_id] for turn in turns]


def counts_of(receipt: Mapping[str, Any]) -> dict[str, int]:
    """What is compared."""
    return {name: receipt[name] for name in COUNTS}
