"""Chooses a worker: prepare → filter → score → pick, joined by typed slots on a RoutingContext."""
