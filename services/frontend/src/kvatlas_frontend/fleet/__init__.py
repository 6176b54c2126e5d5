"""The engines behind this frontend: who they are, who answers, and what is in flight on each."""
