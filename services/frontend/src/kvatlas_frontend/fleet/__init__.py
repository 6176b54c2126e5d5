"""The workers behind this frontend: which exist, which answer, and what is in flight on each."""
