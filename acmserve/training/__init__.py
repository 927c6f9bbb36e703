"""Training data and losses from rollout records: what a session was served becomes samples with a loss mask.

    record (JSON lines) -> rollout -> samples -> a trainer's format
                          rollout -> reward -> advantages, of the same rows

Knows token ids and who sampled them. Knows no vLLM, no server, no tokenizer and no trainer: TRL and verl are formats.

Decision: only `losses/` imports torch, so `acmserve export` starts at once.
"""
