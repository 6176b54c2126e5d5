"""The indexer service: reads a cell's event log and answers FindMatches."""
