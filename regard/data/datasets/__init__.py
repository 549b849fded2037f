"""Encoded examples and their batches: a data set encodes, masks or augments examples, and collates them.

`SourceTargetDataset` has a field for each of the two elements of an example: what a model reads and what it learns. A
field (`ExampleField`) of another modality is a processor in a `ProcessorField`, or a class of its own in a plugin; see
docs/modalities.md. A data set knows the cost of an example. Which examples share a step is decided in `loading`.
"""
