"""From the event log to an answer: how many blocks a second, and how soon."""
