"""Parts of the first screen of the page of benchmarks."""
