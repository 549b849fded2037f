"""Text to token ids and back: trained tokenizers, those of other programs and of users, Whisper's control tokens.

The processor of a text field is here too. Decoding with stop strings and partial UTF-8 belongs to `decode/search`.
"""
