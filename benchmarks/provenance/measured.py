"""Which paths of the product a benchmark measures, from the root of a checkout. A result is as old as these.

The list stands here, and each `BENCHMARK` names one of its rows. A benchmark's own code is none of them: who changes it
runs it again.
"""

from __future__ import annotations

KERNELS = ("kernels/ops", "csrc")
PLAN = ("acmserve/plan",)
ENGINE = (*PLAN, *KERNELS, "acmserve/engine")
"""What an engine in this process runs, where requests come as tokens."""
CONTEXT = ("acmserve/context",)
SERVER = (*ENGINE, *CONTEXT, "acmserve/server")
"""What answers a request over HTTP."""
TOOLS = ("acmserve/context/tools", "acmserve/context/edits")
EVICTION = CONTEXT
"""A pass takes in the resent history first, and renders what it leaves."""
CHATS = (*CONTEXT, "acmserve/server/budget", "acmserve/server/context", "acmserve/server/models")
"""What plans the prompt of a chat turn, and counts it."""
IDENTITY = ("acmserve/server/identity",)
SETUP = ("requirements", "acmserve/models", *ENGINE)
"""What is installed, compiled and downloaded before anything runs, and what runs up to the first receipt."""
PROMPTS = ("benchmarks/edit",)
"""The prompts that a server of others is sent. Nothing of the product answers them."""
STEP = ("acmserve/plan", "acmserve/engine")
TRAINING = ("acmserve/training", *SERVER)
REPEATED_BY = "tests/bench/report/test_recorded_counts.py"
"""The test that asks for recorded receipts again, on vLLM's real scheduler and without a model."""
LEAST_REPETITIONS = 5
"""Of what is timed. Fewer leave an interval that says nothing, and the page of benchmarks refuses them."""
