"""Code that tasks with text output share: searches, results, scores of known targets, views of attention.

Code that only one task needs stays in its folder. Search itself is in `regard.decode`.
"""
