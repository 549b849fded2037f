"""Sound to frames: reading, resampling, Kaldi filterbanks and Whisper's log-mel, SpecAugment, windows, cuts at pauses.

Tables of recordings belong to `data/sources`; the times in transcripts to `modalities`.
"""
