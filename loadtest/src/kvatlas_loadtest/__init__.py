"""Traces, the demo, benchmarks and their reports."""

import os

# The load tests fork to start processes, which run another program at once. gRPC's handlers for
# children that would go on using it are of no use then, and complain on stderr when it is busy.
# They are read when grpc is imported, so this stands before any module that does.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
