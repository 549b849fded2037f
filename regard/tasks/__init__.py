"""The tasks. A task turns data into losses for training, and inputs into results.

One folder per task: `settings.py` (its settings; it imports no torch) and `task.py` with `prepare` for training,
`restore` for use, `size_without_data` for a model without data, and TASK, which declares its requirements on a model.
`generate`, `label` and `parallel` hold code that several tasks share; the files beside them hold code that all share. A
metric, a search or a file format belongs to the package of that name.
"""
