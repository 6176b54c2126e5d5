"""Single calls of the index: the native generator's micro-benchmarks as rows."""
