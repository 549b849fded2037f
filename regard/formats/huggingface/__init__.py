"""Hugging Face folders: one module per family, read and written without `transformers`."""
