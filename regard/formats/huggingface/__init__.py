"""Hugging Face folders: one module per model type, read and written without `transformers`.

`config_table.py`, `weight_names.py`, `vocabularies.py` and `generation.py` hold what several types share.
"""
