"""Tables: which columns a task reads, what their cells hold; TSV, CSV, JSONL, JSON, Parquet, Arrow, memory.

What the records mean to a task (pairs, labels, recordings) belongs to `sources`.
"""
