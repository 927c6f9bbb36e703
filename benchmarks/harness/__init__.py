"""What benchmarks share: engines and servers in processes, machine, options, figures."""
