"""One publisher per worker: epochs above all earlier ones, claims, duplicates in one process."""
