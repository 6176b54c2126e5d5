"""From a prompt to the token ids that the engine will see."""
