"""The state that a replica starts from, and keeps for its next start."""
