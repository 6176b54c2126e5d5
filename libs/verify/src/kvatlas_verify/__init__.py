"""Proves that a cell's replicas and publishers hold the same, or says where they do not."""
