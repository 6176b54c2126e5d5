"""Turns a prompt into the token ids that the engine will compute."""
