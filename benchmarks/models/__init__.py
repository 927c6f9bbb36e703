"""Models that benchmarks use: tiny, scripted, forced. Beside them what a machine lacks to run one."""
