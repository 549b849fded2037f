"""The settings data.* that sources, data sets and processors read. `tasks/<task>/settings.py` says which a task has."""
