"""Embedded data, made by the package itself: what a recipe trains on when no file is named."""
