"""Traces, the demo, benchmarks and their reports."""
