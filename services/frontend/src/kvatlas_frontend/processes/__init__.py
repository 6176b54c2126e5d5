"""`--processes N`: several processes serve one port, and are one frontend to everybody else.

```
                      supervisor: holds the port, serves the admin port, restarts
                        │ control sockets: settings, samples of metrics, shared rows
            ┌───────────┴───────────┐
 clients ─▶ process 0           process 1 ─▶ engines
            └── shared memory: requests in flight by worker, connections by process
```

1. `supervisor` listens, starts the processes, and ends them.
2. `child` is the start of each process; it runs the frontend of `assembly` on the shared socket.
3. `control`: the messages between the two; `link` is the supervisor's end.
4. `memory`: the layout of the shared memory.
5. `shared_load`: a process's load tracker that counts the others' requests too.
6. `rows`: which worker has which shared row, kept by the supervisor.
7. `metrics`: the sum of all processes' metrics, those that died included.
"""
