"""Log servers as child processes, and a log in memory; no service uses them."""
