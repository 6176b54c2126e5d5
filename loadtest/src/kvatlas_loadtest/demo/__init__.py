"""`kvatlas demo`: starts a fleet on this machine, plays a trace through it, prints a table."""
