"""Sends a request to the chosen engine, and the engine's answer to the client."""
