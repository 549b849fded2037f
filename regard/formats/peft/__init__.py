"""Hugging Face PEFT folders, read and written without peft: adapter_config.json and adapter_model.safetensors.

LoRA for every family in `names.FAMILIES`; prompts for gpt and t5; prefixes for gpt. For other pairs PEFT computes
something else: it pools the first prompt vector of a BERT, and a T5 has a prefix in its decoder only.
"""
