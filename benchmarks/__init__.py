"""Speed and memory, measured as ratios within one run; ``python -m benchmarks`` writes docs/reference/benchmarks.md."""
