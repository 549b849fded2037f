"""File formats in and out: Hugging Face folders, PEFT, GGUF, CTranslate2, subtitles, model cards, checks of exports.

A format is a two-way table between another program's names and ours. What a user types or sees belongs to `cli`.
"""
