"""Write a run as a Hugging Face T5 folder: `transformers` and our own reader give the same logits, tokens and texts."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

from safetensors.torch import save
from torch import Tensor

from ...config.run import Run
from ...families import t5
from ...files import JsonObject, write_json
from ...processors.text.tokenizers import Tokenizer
from .generation import decode_entry, generation_config, max_positions
from .t5 import CONFIG, names
from .tokenizer_export import write_tokenizer_files
from .weight_names import export_weights

if TYPE_CHECKING:
    from ...tasks.translate.task import TranslatePredictor

unsupported = CONFIG.unsupported


def write(predictor: "TranslatePredictor", draft: Path, precision: str) -> None:
    """Write everything in the folder except its README."""
    run: Run = predictor.run
    longest = max_positions(run)
    draft.mkdir()
    write_json(draft / "config.json", config(run.model, predictor.target) | decode_entry(run))
    write_json(
        draft / "generation_config.json", generation_config(run, predictor.target, longest, predictor.suppressed)
    )
    (draft / "model.safetensors").write_bytes(
        save(tensors(cast(t5.Model, predictor.model), run.model), {"format": "pt"})
    )
    write_tokenizer_files(predictor, draft, longest)


def config(c: t5.Config, tokenizer: Tokenizer) -> JsonObject:
    """The config.json of a model."""
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        **CONFIG.write(c),
        "pad_token_id": tokenizer.pad,
        "eos_token_id": tokenizer.end,
        "decoder_start_token_id": tokenizer.start,
        "dtype": "float32",
    }


def tensors(model: t5.Model, c: t5.Config) -> dict[str, Tensor]:
    """Copies of the weights by the names of transformers."""
    return {name: tensor.detach().clone().contiguous() for name, tensor in export_weights(model, names(c)).items()}
