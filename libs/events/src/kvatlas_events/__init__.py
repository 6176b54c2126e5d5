"""The event model, and the event log with its transports."""
