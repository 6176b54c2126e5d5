"""The event logs that a replica reads."""
