"""The tasks. A task turns data into losses for training, and inputs into predictions.

One folder per task: `settings.py` (what can be set; it imports no torch) and `task.py` with `prepare` for training,
`restore` for use, `size_without_data` for a model without data, and TASK, which declares what it needs of a model.
`generate`, `label` and `parallel` hold what several tasks share; the files beside them what all share. A metric, a
search or a file format belongs to the package of that name.
"""
