"""Opens what a user names: files and globs, compressed or not, lines by index, folders and archives, data in memory.

Nothing here knows what a line means: columns belong to `tables`, examples to `sources`.
"""
