"""Embedded data, made by the package itself: what a recipe trains on when no file is named.

Each module makes examples of one kind from a seed. Readers of files belong to `data/sources`.
"""
