"""What every service shares: settings, logs, metrics, health, signals, start-up."""
