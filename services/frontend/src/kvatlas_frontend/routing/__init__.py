"""Chooses a worker: Prepare → Filter → Score → Pick, joined by typed slots on a RoutingContext."""
