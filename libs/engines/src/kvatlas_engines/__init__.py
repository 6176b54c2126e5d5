"""Readers of the KV-cache events that inference engines publish."""
