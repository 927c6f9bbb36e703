"""Where a model's own code runs: in processes of its own, with limits, never in the process that evaluates."""
