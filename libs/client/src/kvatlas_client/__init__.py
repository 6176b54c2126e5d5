"""FindMatches for any frontend: replicas, deadline, fail-over."""
