"""The simulator itself: vLLM's own schedulers pass every script, and every kind of damage is noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from tests.support.simulator.failure import Kind, SimulationFailure
from tests.support.simulator.machine import BlockHasher, Factory, Machine, SchedulerClass
from tests.support.simulator.repair import repaired
from tests.support.simulator.scripts import Script, Turn
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.suite import MODES, Mode, dealt_seeds, run_scripts, script_of
from tests.support.simulator.truth import Sequence, Truth, answer
from tests.support.simulator.worker import Worker


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_stock_engine_passes_every_script(factory: Factory, mode: Mode) -> None:
    script_seeds = dealt_seeds(15, (1, 5, 6, 7, 8, 10, 12), mode)
    report = run_scripts(factory.adapted(repaired), mode, script_seeds, acmserve=False)
    assert report.num_preemptions > 15
    assert report.num_aborted > 5
    assert report.num_finished > 150


def _script(mode: Mode, *prompts: tuple[int, ...], salts: tuple[str | None, ...] = (None, None, None)) -> Script:
    """One request per prompt, each after the one before, in a roomy pool."""
    script = script_of(mode, 0, acmserve=False)
    turns: list[Turn] = []
    for index, (prompt, salt) in enumerate(zip(prompts, salts, strict=False)):
        after = turns[-1].request_id if turns else None
        turns.append(Turn(f"r{index}", prompt, max_tokens=6, salt=salt, after=after))
    machine = replace(script.machine, block_size=4, num_blocks=60, max_num_batched_tokens=16)
    return Script(0, machine, tuple(turns))


def _failure_kind(simulation: Simulation) -> Kind:
    with pytest.raises(SimulationFailure) as failure:
        simulation.run()
    return failure.value.kind


@pytest.mark.parametrize("runner_v2", [False, True], ids=["V1", "V2"])
def test_defect_of_stock_priority_preemption(factory: Factory, runner_v2: bool) -> None:
    """See repair.py. When this fails, vLLM was mended and the repair may go.

    step 1   low computes [0, 10)                                 3 of 7 blocks in use
    step 2   low computes [10, 15), high computes [0, 5)          6 of 7
    step 3   low takes the last block for [15, 20), whose hashes are registered. Then high needs a block for [5, 10),
             and preempts low, and low resumes with a hit of 20 tokens, five of which nobody computed
    """
    machine = Machine(
        async_scheduling=False,
        runner_v2=runner_v2,
        num_blocks=8,
        max_num_batched_tokens=10,
        policy="priority",
        reserve_full_input=False,
        long_prefill_threshold=5,
    )
    low = Turn("low", tuple(range(24)), max_tokens=1, priority=1, at_step=1)
    high = Turn("high", tuple(range(100, 112)), max_tokens=1, priority=0, at_step=2)
    script = Script(0, machine, (low, high))
    assert _failure_kind(Simulation(script, factory)) == "poison"
    assert Simulation(script, factory.adapted(repaired)).run().num_preemptions == 1


PROMPT = tuple(range(30))


class _LosesBlock(Worker):
    """Forgets the first block of every request after its first step."""

    def execute(self, output: SchedulerOutput, handed_out: Iterable[int]) -> ModelRunnerOutput:
        result = super().execute(output, handed_out)
        self.memory.poison(new.block_ids[0][0] for new in output.scheduled_new_reqs)
        return result


class _WritesBesides(Worker):
    """Computes every token into the slot behind its own."""

    def _slots_to_compute(self, request_id: str, num_tokens: int, group: int) -> list[int]:
        slots = super()._slots_to_compute(request_id, num_tokens, group)
        return [*slots[1:], slots[0]]


class _SamplesWrong(Worker):
    """Samples another token than the model."""

    def execute(self, output: SchedulerOutput, handed_out: Iterable[int]) -> ModelRunnerOutput:
        result = super().execute(output, handed_out)
        result.sampled_token_ids = [[token + 1 for token in tokens] for tokens in result.sampled_token_ids]
        return result


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(
    ("worker_class", "kind"), [(_LosesBlock, "poison"), (_WritesBesides, "token"), (_SamplesWrong, "output")]
)
def test_damaged_worker_is_noticed(factory: Factory, mode: Mode, worker_class: type[Worker], kind: Kind) -> None:
    assert _failure_kind(Simulation(_script(mode, PROMPT), factory, worker_class=worker_class)) == kind


def _hasher(view: Callable[[list[int], int, int], object]) -> Callable[[int], BlockHasher]:
    """Hashes of blocks that see only `view(tokens, start, end)` of the block `[start, end)`."""

    def make_hasher(block_size: int) -> BlockHasher:
        def hashes(request: Request) -> list[BlockHash]:
            tokens = list(request.all_token_ids)
            starts = range(len(request.block_hashes) * block_size, len(tokens) - block_size + 1, block_size)
            return [BlockHash(sha256(view(tokens, start, start + block_size))) for start in starts]

        return hashes

    return make_hasher


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_block_hash_without_tokens_is_noticed(factory: Factory, mode: Mode) -> None:
    script = _script(mode, PROMPT, tuple(range(100, 130)))
    simulation = Simulation(script, factory, make_hasher=_hasher(lambda tokens, start, end: end))
    assert _failure_kind(simulation) == "token"


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_block_hash_without_prefix_is_noticed(factory: Factory, mode: Mode) -> None:
    """Tokens and positions are right, the context is not: nothing but the origin of the KV tells."""
    other = tuple(range(100, 130))
    script = _script(mode, PROMPT, other, other[:4] + PROMPT[4:])
    simulation = Simulation(script, factory, make_hasher=_hasher(lambda tokens, start, end: tokens[start:end]))
    assert _failure_kind(simulation) == "leak"


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_block_hash_without_salt_is_noticed(factory: Factory, mode: Mode) -> None:
    script = _script(mode, PROMPT, PROMPT, salts=(None, "other"))
    simulation = Simulation(script, factory, make_hasher=_hasher(lambda tokens, start, end: tokens[:end]))
    assert _failure_kind(simulation) == "leak"


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_leaked_block_is_noticed(factory: Factory, mode: Mode) -> None:
    def leaking(base: SchedulerClass) -> SchedulerClass:
        class Leaking(base):  # type: ignore[misc]
            def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
                output: SchedulerOutput = super().schedule(*args, **kwargs)
                pool = self.kv_cache_manager.block_pool
                pool.touch([pool.blocks[new.block_ids[0][0]] for new in output.scheduled_new_reqs])
                return output

        return Leaking

    assert _failure_kind(Simulation(_script(mode, PROMPT), factory.adapted(leaking))) == "blocks"


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_scheduler_that_stops_is_noticed(factory: Factory, mode: Mode) -> None:
    def stopping(base: SchedulerClass) -> SchedulerClass:
        class Stopping(base):  # type: ignore[misc]
            def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
                self.set_pause_state(PauseState.PAUSED_NEW)
                output: SchedulerOutput = super().schedule(*args, **kwargs)
                return output

            def has_unfinished_requests(self) -> bool:
                return bool(self.requests)

        return Stopping

    assert _failure_kind(Simulation(_script(mode, PROMPT), factory.adapted(stopping))) == "stuck"


def test_answers_are_known_beforehand() -> None:
    sequence = Sequence(Truth(), None, PROMPT)
    assert tuple(sequence.token(30 + index) for index in range(9)) == answer(PROMPT, 9)
