"""`kvatlas demo`: a whole fleet on this machine, a trace through it, a table."""
