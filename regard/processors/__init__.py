"""Processors turn raw values into arrays and back. A run folder contains them beside its weights.

They read, check and augment one raw value (a text, an image, a recording, a label, boxes) and build tensors. Files of
many examples belong to `data/sources`, planning of steps to `data/loading`. `base.py` has the interface, `saved.py`
the files in a run folder, `fields.py` examples of several fields.
"""
