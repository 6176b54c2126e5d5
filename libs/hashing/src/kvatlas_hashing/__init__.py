"""The hash contract: chunk hashes and sequence hashes of token prompts."""
