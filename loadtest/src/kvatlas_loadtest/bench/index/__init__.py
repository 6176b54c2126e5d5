"""`kvatlas bench index`: the index beside every design it is measured against.

1. `options`: what the command can be told
2. `opstream`, `streams`: operation streams, made of a trace or given
3. `program`: one trial, played by the native generator
4. `search`, `race`: the shortest window each design keeps up with, and half that load
5. `flat_alone`, `micro`, `python_baseline`: what only one design is asked
6. `results`, `targets`: what was found out, and rows of it
7. `sheets`, `tables`, `micro_tables`, `picture`: the same to look at
8. `run`, `entry`: all of it, as the command calls it
"""
