"""The publisher's knowledge of its engine beside the events: HTTP status, data-parallel rank."""
