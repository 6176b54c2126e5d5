"""The kvatlas command; services plug their subcommand in by entry point."""
