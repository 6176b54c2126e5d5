"""Benchmarks from the event log to an answer: blocks per second, and latency."""
