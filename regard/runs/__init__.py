"""Runs from outside: launch or resume one, start from other weights, load one as a predictor, tune over a base, stages.

What happens inside a training belongs to `training`; what run.json looks like to `config/run_folder.py`; reading other
programs' files to `formats`.
"""
