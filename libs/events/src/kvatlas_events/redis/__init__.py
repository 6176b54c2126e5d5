"""The event log as streams of a Redis or Valkey server or cluster."""
