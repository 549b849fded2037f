"""Data, from files to batches: files/ → tables/ → sources/ → datasets/; loading/ plans steps and runs workers.

`source.py` has the interface of raw examples, `dataset.py` that of encoded ones, `batch.py` that of a micro-batch.
Processors, which turn one raw value into arrays, are in `regard.processors`; embedded data are in `regard.synthetic`.
"""
