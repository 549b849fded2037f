"""What tasks that write text share: from requests to searches, results, scores of known targets, views of attention.

A task's own reading and joining stay in its folder. Search itself is in `regard.decode`.
"""
