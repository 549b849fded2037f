"""Text, images and sound: how raw items are read, limited, batched, keyed and shown. No task asks which one it has.

One object per modality and run. Processors (`regard.processors`) turn raw values into arrays and are saved with a run;
training data are in `regard.data`. What a task does with an item belongs to the task.
"""
