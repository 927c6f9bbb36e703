"""States and transitions in a worker, on tensors, and the groups of which it has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.v1.outputs import KVConnectorOutput

from acmserve.engine.groups.facts import KVGroups, read_groups
from acmserve.engine.plugin.connector import AcmConnector
from acmserve.engine.vllm.model.forward_exit import ForwardExit
from acmserve.engine.vllm.model.state_space import decays
from acmserve.engine.worker import state_mover
from acmserve.engine.worker.copies import RecordedTransition, StateCopy, StateMove, TransitionRecord
from acmserve.engine.worker.layer_transition import MAX_PENDING
from acmserve.engine.worker.messages import TransitionsRecorded
from acmserve.engine.worker.state_mover import StateLayer, StateMover
from acmserve.errors import IntegrityError, MoveRefused

HEADS, SIZE = 2, 4
RECORD = TransitionRecord(7, ((0, 5), (1, 6)), 2, is_whole=True)


def layers() -> list[StateLayer]:
    """Two groups with a layer each, which share a tensor as vLLM's hybrid groups do."""
    states, inputs = torch.randn(10, HEADS, SIZE, SIZE), torch.randn(10, 3, SIZE)
    return [StateLayer(f"layers.{group}", group, inputs, states) for group in range(2)]


@dataclass(frozen=True)
class Inputs:
    """Tokens over which the transition is this one."""

    matrix: torch.Tensor
    num_tokens: int = 2
    num_bytes: int = 0

    def joined(self, others: Sequence[Inputs]) -> Inputs:
        matrix = self.matrix
        for other in others:
            matrix = other.matrix @ matrix
        return Inputs(matrix, self.num_tokens + sum(other.num_tokens for other in others))

    def transition(self) -> torch.Tensor:
        return self.matrix


def run(mover: StateMover, layer: StateLayer, block_id: int, transition: torch.Tensor, num_tokens: int = 2) -> None:
    mover.on_tokens(layer.states, torch.tensor([block_id]), lambda index: Inputs(transition, num_tokens))


def test_a_state_is_composed_with_what_was_recorded() -> None:
    of_0, of_1 = layers()
    mover = StateMover([of_0, of_1])
    mover.begin_recording([RECORD], ())
    half = 0.5 * torch.eye(SIZE).repeat(HEADS, 1, 1)
    run(mover, of_0, 5, half)
    run(mover, of_1, 6, 2 * half)
    facts = mover.take_recorded()
    assert facts is not None
    assert facts.keys() == {7}
    assert facts[7] is not None
    assert 1 <= facts[7].norm <= SIZE**0.125
    assert facts[7].num_bytes == 2 * half.nbytes
    mover.check_integrity()
    states, inputs = of_0.states.clone(), of_0.inputs.clone()
    mover.carry_out([StateMove("r", 0, 0, 0, 16, before=1, after=2, there=3, dst_block_id=4, transitions=(7,))])
    expected = states[2] + 0.5 * (states[3] - states[1])
    assert torch.allclose(of_0.states[4], expected)
    assert torch.equal(of_0.inputs[4], inputs[2])
    mover.begin_recording([], (7,))
    with pytest.raises(KeyError):
        mover.carry_out([StateMove("r", 0, 0, 0, 16, 1, 2, 3, 4, (7,))])


def test_what_lacks_a_layer_is_not_recorded() -> None:
    of_0, of_1 = layers()
    mover = StateMover([of_0, of_1])
    mover.begin_recording([RECORD], ())
    run(mover, of_0, 5, torch.eye(SIZE).repeat(HEADS, 1, 1))
    with pytest.raises(IntegrityError, match="1 of 2 layers"):
        mover.check_integrity()
    assert mover.take_recorded() == {7: None}
    mover.check_integrity()
    run(mover, of_1, 6, torch.eye(SIZE).repeat(HEADS, 1, 1))
    assert mover.take_recorded() is None, "nothing is recorded between steps"


def recorded_in_steps(num_decoded: int, *, lacks: int = -1) -> tuple[StateMover, RecordedTransition | None]:
    """A chunk of 2 tokens is prefilled, and tokens decoded one by one. Layer 1 does not see the one that is lacking."""
    of_0, of_1 = layers()
    mover = StateMover([of_0, of_1])
    turned = torch.linalg.qr(torch.randn(HEADS, SIZE, SIZE))[0]
    fact = None
    for step in range(num_decoded + 1):
        mover.begin_recording([replace(RECORD, num_tokens=2 + step, is_whole=False)], ())
        for layer, block_id in ((of_0, 5), (of_1, 6)):
            if layer is of_0 or step != lacks:
                run(mover, layer, block_id, 0.99 * turned if step else 0.5 * turned, 1 if step else 2)
        facts = mover.take_recorded()
        assert facts is not None
        fact = facts[7]
        if fact is None:
            return mover, None
        mover.check_integrity()
    states = of_0.states.clone()
    mover.carry_out([StateMove("r", 0, 0, 0, 16, before=1, after=2, there=3, dst_block_id=4, transitions=(7,))])
    if fact is not None:
        assert sum(one.num_bytes for one in mover._transitions[7].values()) == fact.num_bytes, "a move holds no more"
    factor = 0.5 * 0.99**num_decoded * torch.linalg.matrix_power(turned, num_decoded + 1)
    assert torch.allclose(of_0.states[4], states[2] + factor @ (states[3] - states[1]), atol=1e-5)
    return mover, fact


@pytest.mark.parametrize("num_decoded", [0, 1, 5, MAX_PENDING, 3 * MAX_PENDING - 4])
def test_a_transition_goes_on_over_decoded_tokens(num_decoded: int) -> None:
    """It is the product over all of them. Its norm is known as far as they were multiplied in."""
    mover, fact = recorded_in_steps(num_decoded)
    assert fact is not None
    num_in = (num_decoded + 2) // MAX_PENDING * MAX_PENDING
    bound = 1.0 if not num_in else 0.5 * 0.99 ** (num_in - 2) * SIZE**0.125
    assert fact.norm == pytest.approx(min(bound, 1.0), rel=1e-4)
    mover.check_integrity()


@pytest.mark.parametrize("lacks", [0, 1, 4])
def test_a_token_that_a_layer_has_not_seen_ends_it(lacks: int) -> None:
    """Control of the test above: what was recorded before is forgotten, too."""
    mover, fact = recorded_in_steps(5, lacks=lacks)
    assert fact is None
    mover.check_integrity()
    with pytest.raises(KeyError):
        mover.carry_out([StateMove("r", 0, 0, 0, 16, 1, 2, 3, 4, (7,))])


def test_integrity_of_what_the_layers_have_seen() -> None:
    of_0, of_1 = layers()
    mover = StateMover([of_0, of_1])
    mover.begin_recording([RECORD], ())
    for layer, block_id, num_tokens in ((of_0, 5, 2), (of_1, 6, 1)):
        run(mover, layer, block_id, torch.eye(SIZE).repeat(HEADS, 1, 1), num_tokens)
    with pytest.raises(IntegrityError, match=r"have seen \[1, 2\] tokens"):
        mover.check_integrity()
    assert mover.take_recorded() == {7: None}
    mover.check_integrity()


def test_several_workers_have_recorded_what_all_of_them_have() -> None:
    one = TransitionsRecorded({1: RecordedTransition(0.1, 10), 2: RecordedTransition(0.5, 10)})
    other = TransitionsRecorded({2: RecordedTransition(0.7, 8), 3: RecordedTransition(0.1, 10)})
    both = one.aggregate(other)
    assert isinstance(both, TransitionsRecorded)
    assert both.facts == {1: None, 2: RecordedTransition(0.7, 10), 3: None}
    none = both.aggregate(TransitionsRecorded({2: None}))
    assert isinstance(none, TransitionsRecorded)
    assert none.facts == {1: None, 2: None, 3: None}


def test_the_inputs_of_a_short_convolution_are_copied_as_they_are() -> None:
    inputs = torch.randn(10, 2, SIZE)
    mover = StateMover([StateLayer("layers.0", 0, inputs)])
    was = inputs.clone()
    mover.carry_out([StateMove("r", 0, 0, 0, 16, before=None, after=2, there=3, dst_block_id=4, transitions=())])
    assert torch.equal(inputs[4], was[2])
    assert torch.equal(inputs[:4], was[:4])
    mover.begin_recording([], ())
    mover.on_tokens(inputs, torch.tensor([4]), lambda index: Inputs(torch.eye(SIZE)))
    assert mover.take_recorded() is None
    mover.check_integrity()


def test_the_state_behind_a_prefix_is_copied_as_it_is() -> None:
    of_0, of_1 = layers()
    assert of_0.states is not None
    was = of_0.states.clone()
    move = StateMove("r", of_0.group, 7, 7, 16, before=None, after=2, there=None, dst_block_id=4, transitions=())
    StateMover([of_0, of_1]).carry_out([move])
    assert torch.equal(of_0.states[4], was[2])
    assert torch.equal(of_0.inputs[4], of_0.inputs[2])
    assert torch.equal(of_0.states[:4], was[:4])
    assert torch.equal(of_0.states[5:], was[5:])


def test_the_state_in_front_of_an_answer_is_kept_in_its_group_alone() -> None:
    """With the inputs of its convolution. A move of the same step composes with what it was."""
    of_0, of_1 = layers()
    conv = StateLayer("layers.2", 0, torch.randn(10, 2, SIZE))
    assert of_0.states is not None
    was, inputs = of_0.states.clone(), conv.inputs.clone()
    StateMover([of_0, of_1, conv]).carry_out([StateCopy("r", 0, 70, src_block_id=3, dst_block_id=8)])
    assert torch.equal(of_0.states[8], was[3])
    assert torch.equal(of_0.inputs[8], of_0.inputs[3])
    assert torch.equal(conv.inputs[8], inputs[3])
    assert torch.equal(of_0.states[:8], was[:8])
    assert torch.equal(of_0.states[9], was[9])


def test_a_move_within_a_block_composes_with_what_it_overwrites() -> None:
    of_0, _ = layers()
    assert of_0.states is not None
    mover = StateMover([of_0])
    mover.begin_recording([replace(RECORD, block_ids=((0, 5),))], ())
    run(mover, of_0, 5, 0.5 * torch.eye(SIZE).repeat(HEADS, 1, 1))
    mover.take_recorded()
    was = of_0.states.clone()
    mover.carry_out([StateMove("r", 0, 0, 0, 16, before=1, after=2, there=4, dst_block_id=4, transitions=(7,))])
    assert torch.allclose(of_0.states[4], was[2] + 0.5 * (was[4] - was[1]))


def test_a_worker_that_has_nothing_to_tell_is_counted() -> None:
    """vLLM passes over a worker without words, and would take the others' for everybody's."""
    of_0, of_1 = layers()
    metas = []
    for num_prefilled in (2, 0):
        mover = StateMover([of_0, of_1])
        mover.begin_recording([RECORD], ())
        for layer, block_id in [(of_0, 5), (of_1, 6)][:num_prefilled]:
            run(mover, layer, block_id, torch.eye(SIZE).repeat(HEADS, 1, 1))
        worker: Any = SimpleNamespace(_mover=mover, _exit=ForwardExit())
        metas.append(AcmConnector.build_connector_worker_meta(worker))
        assert AcmConnector.build_connector_worker_meta(worker) is None, "nothing was to be recorded"
    outputs: list[Any] = [
        SimpleNamespace(kv_connector_output=KVConnectorOutput(kv_connector_worker_meta=meta)) for meta in metas
    ]
    told = KVOutputAggregator(2).aggregate(outputs).kv_connector_output.kv_connector_worker_meta
    assert isinstance(told, TransitionsRecorded)
    assert told.facts == {7: None}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_states_elsewhere_than_on_a_cpu_are_left_alone(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their engine refuses moves by its configuration, and its copies go on."""
    watched: list[Any] = []
    monkeypatch.setattr(state_mover, "WATCHED", {"GDN_ATTN": watched.append, "MAMBA2": None})
    attention = SimpleNamespace(kv_cache_spec=FULL, layer_names=[])
    group = SimpleNamespace(kv_cache_spec=recurrent(), layer_names=["layers.0"])
    config: Any = SimpleNamespace(kv_cache_groups=[attention, group])
    states = (torch.empty(10, 3, SIZE, device=device), torch.empty(10, HEADS, SIZE, SIZE, device=device))
    found = StateMover.of_engine(config, {"layers.0": SimpleNamespace(kv_cache=states)})
    assert (found is not None) is (len(watched) == 1) is (device == "cpu")


def test_a_step_size_tells_what_a_head_forgets() -> None:
    """vLLM's own recurrence, token by token: a state of ones and no values."""
    from vllm.model_executor.layers.mamba.ops.mamba_ssm import selective_state_update

    num_tokens, heads, rows, columns = 5, 3, 2, 4
    raw, bias, rates = torch.randn(num_tokens, heads), torch.randn(heads), -torch.rand(heads)
    state = torch.ones(2, heads, rows, columns)
    nothing, zeros = torch.zeros(1, heads, rows), torch.zeros(1, 1, columns)
    for step in raw:
        selective_state_update(
            state,
            nothing,
            step[None, :, None].expand(1, heads, rows),
            rates[:, None, None].expand(heads, rows, columns),
            zeros,
            zeros,
            dt_bias=bias[:, None].expand(heads, rows),
            dt_softplus=True,
            state_batch_indices=torch.ones(1, dtype=torch.int32),
            out=torch.empty_like(nothing),
        )
    assert torch.allclose(decays(raw, bias, rates).expand(heads, rows, columns), state[1], atol=1e-6)


def spec(name: str, **facts: Any) -> Any:
    return type(name, (), {"block_size": 16, **facts})()


def recurrent(**facts: Any) -> Any:
    kind = SimpleNamespace(name=facts.pop("kind", "GDN_ATTN"))
    known = {"mamba_cache_mode": "align", "num_speculative_blocks": 0, "shapes": ((3, 512), (2, 64, 64))}
    return spec("MambaSpec", mamba_type=kind, **(known | facts))


FULL, WINDOW = spec("FullAttentionSpec"), spec("SlidingWindowSpec", sliding_window=64, extra_retained_tokens=0)


def test_a_state_stands_behind_each_block_and_mixes_three_tokens_in() -> None:
    groups = KVGroups.of_engine([FULL, recurrent(), recurrent()], 16)
    assert [group.index for group in groups.recurrent] == [1, 2]
    assert (groups.windows, groups.is_lone, groups.leading.index) == ((), False, 0)
    rules = groups.state_rules
    assert rules is not None
    assert [rules.behind(end) for end in (1, 13, 14, 16)] == [16, 16, 32, 32]


def test_a_short_convolution_is_no_state_to_compose() -> None:
    conv = recurrent(kind="SHORT_CONV", shapes=((2, 512),))
    groups = KVGroups.of_engine([FULL, conv, recurrent()], 16)
    assert [group.index for group in groups.recurrent] == [1, 2]
    assert [group.index for group in groups.composed] == [2]
    rules = KVGroups.of_engine([FULL, conv], 16).state_rules
    assert rules is not None
    assert rules.behind(14) == 16


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        ([FULL, recurrent(kind="MAMBA1")], "of kind MAMBA1; of those, gated delta nets, Mamba-2 and short"),
        ([FULL, recurrent(kind="LINEAR")], "of kind LINEAR; of those, gated delta nets, Mamba-2 and short"),
        ([FULL, recurrent(kind="SHORT_CONV", num_speculative_blocks=2)], "without drafts"),
        ([FULL, recurrent(mamba_cache_mode="all")], "keeps one for each block"),
        ([FULL, recurrent(num_speculative_blocks=2)], "without drafts"),
        ([recurrent()], "beside full attention only"),
        ([FULL, WINDOW, recurrent()], "beside full attention only"),
        ([FULL, recurrent(block_size=32)], "blocks of one size"),
    ],
)
def test_other_states_are_refused_by_name(specs: list[Any], reason: str) -> None:
    with pytest.raises(MoveRefused, match=reason):
        read_groups(specs)
    assert KVGroups.of_engine(specs, 16).state_rules is None
