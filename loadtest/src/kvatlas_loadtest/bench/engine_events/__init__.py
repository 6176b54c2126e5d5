"""Benchmark from an engine's socket to an answer: blocks per second, and a publisher's cost."""
