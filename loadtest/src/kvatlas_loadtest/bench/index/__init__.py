"""`kvatlas bench index`: measures the index and the published designs on the same streams.

1. `options`: the flags
2. `opstream`, `streams`: operation streams, made from a trace or given
3. `program`: one trial, played by the native generator
4. `search`, `race`: the shortest window that each design keeps up with, and half that load
5. `flat_index`, `micro`, `python_baseline`: measurements of one design only
6. `results`, `targets`: the results, and rows that compare them with targets
7. `text_table`, `tables`, `micro_tables`, `plot`: the results as tables and as a plot
8. `run`, `command`: the whole benchmark, as `kvatlas bench` calls it
"""
