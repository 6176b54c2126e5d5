"""The OpenAI surface: what a request says, and how errors are told."""
