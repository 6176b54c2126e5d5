"""`kvatlas bench ledger`: measures what each optimization of the index buys.

1. `tricks`: the optimizations, their switches and their lines of code
2. `rounds`: plays the streams on the index with and without each one, in turn
3. `tables`: tables of ratios, and rows with the largest gains
4. `run`: builds the programs, runs the rounds; its flags
"""
