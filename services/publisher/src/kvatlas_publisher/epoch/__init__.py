"""One epoch of a worker: mirror, event ids, sealed records, and the number of the epoch."""
