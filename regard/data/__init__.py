"""Data sets, from files to batches."""
