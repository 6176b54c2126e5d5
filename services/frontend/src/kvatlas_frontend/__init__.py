"""The frontend service: routes OpenAI requests to the worker that holds their prefix."""
