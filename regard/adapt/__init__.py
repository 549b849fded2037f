"""Passes over a finished model: LoRA, adapters, prompts, prefixes, freezing, muting and pruning heads, precision.

A pass finds modules by type, so that it works on every family. What a run stores of a pass belongs to `runs/tuned.py`,
what another program stores of it to `formats`.
"""
