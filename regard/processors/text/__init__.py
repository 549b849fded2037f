"""Text to token ids and back: trained, imported and custom tokenizers, Whisper's control tokens.

The processor of a text field is here too. Decoding with stop strings and partial UTF-8 belongs to `decode/search`.
"""
