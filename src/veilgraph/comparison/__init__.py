"""Whether training together is worth it: a job beside what its parts reach, on the same test nodes."""
