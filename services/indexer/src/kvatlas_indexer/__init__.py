"""The indexer service: consumes a cell's event log, answers FindMatches."""
