"""Write a run of the family longformer as a Hugging Face folder that gives the same numbers.

transformers makes the first token global by itself only with a head for classes. For other heads the caller passes
`global_attention_mask`, and our own reader takes the number from config.json.
"""

from pathlib import Path

import torch
from torch import Tensor

from ...families import longformer
from ...files import JsonObject, read_json
from ...processors.text.tokenizers import TrainedTokenizer
from ..model_card import encoder_usage
from .bert_export import EncoderSample, EncoderSource, check_folder, write_encoder
from .longformer import architecture, config_table, names, read
from .weight_names import export_weights

HEADS = ("lm_head.", "classifier.")


def unsupported(c: longformer.Config) -> list[str]:
    """Settings that transformers' Longformer cannot represent; empty if there is none."""
    return config_table(0).unsupported(c)


def write(predictor: EncoderSource, draft: Path, precision: str) -> None:
    """Write everything in the folder except its README."""
    c: longformer.Config = predictor.run.model
    text = predictor.tokenizer
    inputs = ("input_ids", "attention_mask")
    write_encoder(predictor, draft, config(c, text), tensors(predictor.model, c, text), inputs)


def config(c: longformer.Config, text: TrainedTokenizer) -> JsonObject:
    """The config.json of a model."""
    return {
        "model_type": "longformer",
        **config_table(text.pad + 1).write(c),
        "pad_token_id": text.pad,
        "bos_token_id": text.start,
        "eos_token_id": text.end,
        "sep_token_id": text.end,
        "dtype": "float32",
    }


def tensors(model: longformer.Model, c: longformer.Config, text: TrainedTokenizer) -> dict[str, Tensor]:
    """The weights under the names that `save_pretrained` would write."""
    theirs = export_weights(model, names(c, text.pad + 1))
    if c.tied:
        theirs.pop("lm_head.decoder.weight", None)
    for name in [name for name in theirs if ".attention.self." in name and "_global." not in name]:
        wide = name.replace(".weight", "_global.weight").replace(".bias", "_global.bias")
        theirs.setdefault(wide, theirs[name])  # without global positions these are never used
    prefix = "" if c.head == "none" else "longformer."
    return {
        name if name.startswith(HEADS) else prefix + name: tensor.detach().clone().contiguous()
        for name, tensor in theirs.items()
        if not (name.startswith("pooler.") and c.head != "none")
    }


def check(predictor: EncoderSource, draft: Path, precision: str) -> str:
    """Compare the folder with the run, by our reader and by transformers where it is installed; a report."""
    c: longformer.Config = predictor.run.model
    sample = EncoderSample(predictor)
    wide = torch.zeros_like(sample.tokens)
    wide[:, : c.attention.globals] = 1
    folder = read(draft, read_json(draft / "config.json"))
    return check_folder(sample, folder, draft, architecture(c), global_attention_mask=wide)


def usage(predictor: EncoderSource) -> str:
    """The README's example: it makes the first token global, as in training."""
    before = (
        'wide = 0 * batch["input_ids"]\n'
        f"wide[:, :{predictor.run.model.attention.globals}] = 1  # tokens that attend to all and are attended by all\n"
    )
    return encoder_usage(architecture(predictor.run.model), before, ", global_attention_mask=wide")
