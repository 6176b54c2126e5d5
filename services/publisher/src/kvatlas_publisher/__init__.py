"""The publisher service: follows inference engines and publishes what their caches hold.

The way of one batch of engine events, for one worker (one engine rank):

1. `kvatlas_engines.follower` reads the engine's socket. Its `Stream` detects gaps, replays and
   restarts, and delivers *effects*: runs of messages, holes, the end of the engine's stream.
2. `pipeline.handle` takes the effects. The first message names the rank and begins an epoch.
3. `mirror.apply_payloads` decodes the messages in native code and updates the mirror, this
   process's copy of the engine's cache. Changes of the published set are pending events.
4. `pipeline._check` judges the outcome: malformed messages, refused blocks, another rank.
5. `pipeline.flush` seals the pending events: `epoch.Epoch` numbers them and returns records.
6. `deliveries.push` queues each record in one outbox per destination. Their `Delivery` tasks
   (`kvatlas_events.delivery`) append to the logs, and ask for a snapshot if an outbox overflowed.

| module | job |
|---|---|
| `main` | settings, parts, tasks, end of the process |
| `settings`, `context` | flags and files; what the parts of one worker share |
| `worker_publisher` | the parts of one worker, and their tasks |
| `pipeline` | steps 2 to 6 |
| `heartbeats` | heartbeats; an engine that is idle, gone, or back |
| `deliveries` | one delivery per destination |
| `mirror` | the engine's cache, by the native `EngineMirror` |
| `engine/` | HTTP status and rank of the engine |
| `epoch/` | one epoch, its replay ring, its number; which epoch is current |
| `state/` | files that outlive the process: highest epoch, checkpoint of the mirror |
| `ownership/` | one publisher per worker: known epochs, claims, duplicates |
| `rpc`, `metrics` | `Replay` and `Snapshot` for indexers; `/metrics` |
"""
