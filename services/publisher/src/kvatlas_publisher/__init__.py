"""The publisher service: follows one engine and says what its cache holds."""
