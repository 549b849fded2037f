"""Span corruption, T5's pre-training: the predictor generates what the sentinels of a text replace."""
