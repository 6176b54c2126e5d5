"""The state that outlives the process: the highest epoch and the mirror of each worker."""
