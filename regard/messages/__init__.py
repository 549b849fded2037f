"""What predictors are asked and what they answer: frozen types whose JSON is the type itself.

A field of a request that is None has the value of the run; a field that does not exist is refused. Here belong only
values: how a task answers a request is in `regard.tasks`, how an image is read in `regard.modalities`.
"""
