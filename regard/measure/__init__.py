"""Measurements of predictors: attribution, deletion curves, head reports and effects, logit lens, comparison.

Everything here reads predictors and returns numbers or pictures. Recording attention and drawing it belong to `look`;
metrics of predictions to `metrics`.
"""
