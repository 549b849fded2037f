"""Chooses tokens: the states of beam search, greedy search and sampling, constraints, filters, stop strings, texts.

A search state knows neither requests nor models: it gets logits and returns the tokens to read next. Strategies as
values that a user sets are in `config/strategies.py`.
"""
