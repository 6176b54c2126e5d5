"""The frontend beside its peers: what a router adds to a request, and how much it can route.

1. `command`: the benchmark's flags
2. `run`: starts everything, measures the routers in turn
3. `routers`: how each router is started, and which are installed
4. `chats`: the requests' prompts
5. `load`: the native load generator and engines
6. `measures`: one function per measurement
7. `several`: the cost of several processes on one port
8. `figures`: the figures, their targets, rows and the table that compares routers
9. `decide`: the time of a routing decision, without any request
"""
