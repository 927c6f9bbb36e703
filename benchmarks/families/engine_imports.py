"""What each family's process needs of vLLM, imported once. The processes are forked from the one that has it.

Imports only. No thread may start here, and no tensor be computed.
"""

from __future__ import annotations

import vllm  # noqa: F401
from vllm.v1.engine import llm_engine  # noqa: F401
from vllm.v1.worker import cpu_worker  # noqa: F401

import acmserve.bench.families.probe
import acmserve.bench.families.random_weights
import acmserve.engine.plugin.connector
import acmserve.engine.vllm.scheduler
import acmserve.engine.worker.model_verdict  # noqa: F401
