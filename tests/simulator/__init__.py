"""vLLM's real scheduler on a worker without tensors: every slot that a request reads is checked, under random scripts.

    scripts.py     what clients send, from one seed      truth.py       what every slot ought to hold
    machine.py     the real scheduler, a tiny pool       slots.py       what every slot holds, and who may read it
    simulation.py  client, engine core loop, checks      worker.py      one step
    forgetting.py  what a redaction must leave           background.py  what background requests may do to others
    report.py      the counts of a run                   runner.py      runner V1 and V2

`test_stock_engine.py` proves the simulator on vLLM alone, `test_engine.py` runs acmserve and its negative controls,
`test_conversations.py`, `test_preemption.py`, `test_forgetting.py`, `test_background.py` and `test_slots.py` show
single behaviours.
For a long run: ACMSERVE_SIMULATOR_FACTOR=10.
"""
