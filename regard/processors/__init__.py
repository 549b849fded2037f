"""Processors turn raw values into arrays and back. A run keeps them beside its weights: they ship with the model.

What belongs here: reading and checking one raw value (a text, an image, a recording, a label, boxes), augmenting it,
and making tensors of it. What does not: where examples come from (`data/sources`) and how steps are planned
(`data/loading`). `base.py` has the interface, `saved.py` the files in a run folder, `fields.py` examples of several
fields.
"""
