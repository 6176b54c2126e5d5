"""From an engine's socket to an answer: blocks a second, and what a publisher costs."""
