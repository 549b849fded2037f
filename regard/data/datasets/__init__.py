"""Encoded examples and their batches: a data set encodes, masks or augments examples, and collates them.

A data set knows the cost of an example. Which examples share a step is decided in `loading`.
"""
