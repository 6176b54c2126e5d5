"""The event log as one topic of a Kafka cluster."""
