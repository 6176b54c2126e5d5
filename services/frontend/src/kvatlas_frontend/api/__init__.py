"""The OpenAI API: reads request bodies, writes error objects."""
