"""Passes over a finished model (LoRA, adapters, prompts, prefixes, precision). They find modules by type, so they work
on every family."""
