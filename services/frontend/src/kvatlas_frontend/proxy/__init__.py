"""Carries a plan out: the request to an engine, the answer to the client."""
