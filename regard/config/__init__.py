"""Settings, how layers of them become a `Run`, and the format of run.json.

It has settings that several packages read, decoding strategies and token rules as values, merging, explaining, and
registries by import name. It imports no family, no task and no torch. The settings of one task are in
`tasks/<task>/settings.py`, those of one family in its `Config`.
"""
