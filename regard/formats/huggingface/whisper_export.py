"""Writes a run with a Whisper model as a folder of transformers."""

import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...config.decode_sound import WhisperDecode
from ...errors import UserError
from ...files import JsonObject, read_json
from ...parts import Inputs
from ...processors.sound.log_mel import AudioProcessor
from ...processors.text.whisper import WhisperTokenizer
from ..parity import check_close, quiet
from . import whisper
from .generation import generated_rules, generated_strategy

if TYPE_CHECKING:
    from ...tasks.whisper.task import WhisperPredictor

PROBE = 2, 11  # rows and tokens that are compared


def write(predictor: "WhisperPredictor", draft: Path, precision: str) -> None:
    """Write everything in the folder except its README."""
    c, target, sound = predictor.run.model, predictor.target, predictor.sound
    if not isinstance(target, WhisperTokenizer) or not isinstance(sound, AudioProcessor):
        raise UserError(
            f"{draft.name} cannot become a Whisper folder: its tokenizer has no control tokens; train it again"
        )
    if sound.rate != whisper.RATE:
        raise UserError(
            f"the run reads {sound.rate} samples per second, and a Whisper folder {whisper.RATE}; train with "
            f"data.rate={whisper.RATE}"
        )
    generation = generation_settings(predictor)
    ids = {key: generation[key] for key in ("decoder_start_token_id", "eos_token_id", "pad_token_id", "bos_token_id")}
    files = {
        "generation_config.json": to_bytes(generation),
        "tokenizer.json": target.backend.to_str(pretty=True).encode(),
        "tokenizer_config.json": to_bytes(tokenizer_settings(target, c.positions.tokens)),
    }
    folder = whisper.WhisperFolder(c, predictor.module, sound, target, generation, ids, files)  # type: ignore[arg-type]
    whisper.write(folder, draft)


def generation_settings(predictor: "WhisperPredictor") -> JsonObject:
    """generation_config.json."""
    decode: WhisperDecode = predictor.run.decode
    target, control = predictor.target, predictor.target.control
    settings: JsonObject = {
        "decoder_start_token_id": target.start, "eos_token_id": target.end, "pad_token_id": target.pad,
        "bos_token_id": target.end, "max_length": predictor.context, "no_timestamps_token_id": control.no_timestamps,
        "return_timestamps": decode.windows.timestamps, "is_multilingual": target.multilingual,
        "prev_sot_token_id": control.previous, "max_initial_timestamp_index": control.latest_start,
        "alignment_heads": [list(head) for head in predictor.run.model.alignment_heads] or None,
    }  # fmt: skip
    if target.multilingual:
        settings |= {
            "lang_to_id": {f"<|{code}|>": number for code, number in control.languages.items()},
            "task_to_id": control.tasks,
            "task": decode.task,
            "language": target.language(decode.language) if decode.language else None,
        }
    settings |= generated_strategy(decode) | generated_rules(decode, ())
    return {key: value for key, value in settings.items() if value is not None}


def tokenizer_settings(target: WhisperTokenizer, positions: int) -> JsonObject:
    """The tokenizer_config.json of a model."""
    names = {number: token.content for number, token in target.backend.get_added_tokens_decoder().items()}
    roles = {"bos_token": target.end, "eos_token": target.end, "pad_token": target.pad}
    class_name = "WhisperTokenizer" if target.spaced else "PreTrainedTokenizerFast"
    control = {role: names[number] for role, number in roles.items() if number in names}
    return {
        "tokenizer_class": class_name,
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,
        **control,
    }


def to_bytes(values: JsonObject) -> bytes:
    """A value as the bytes of a JSON file."""
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()


def check(predictor: "WhisperPredictor", draft: Path, precision: str) -> str:
    """Compare the folder, as transformers and regard read it, with the run on frames of noise."""
    generator = torch.Generator().manual_seed(1)
    model: Any = predictor.module.float().cpu()
    frames = torch.randn(PROBE[0], model.max_frames, model.bins, generator=generator)
    tokens = torch.randint(predictor.transcriber.vocab, PROBE, generator=generator)
    source, target = Inputs("frames", frames), Inputs("tokens", tokens)
    with torch.no_grad():
        expected = model(source, target)
        folder_logits = whisper.read(draft, read_json(draft / "config.json")).model(source, target)
        check_close("logits of the folder as regard reads it", folder_logits, expected)
        if find_spec("transformers") is None:
            return "equal when read again; not compared with transformers, which is not installed"
        hf: Any = import_module("transformers")
        with quiet(hf):
            theirs = hf.WhisperForConditionalGeneration.from_pretrained(draft).eval()
            logits = theirs(input_features=frames.transpose(1, 2), decoder_input_ids=tokens).logits
        difference = check_close("logits of transformers", logits, expected)
    return f"equal when read again; transformers differs by {difference:.1g} of the largest logit"


def usage(predictor: "WhisperPredictor") -> str:
    """The usage example of the model card."""
    return """
```python
import soundfile
from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

folder = "."
model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
samples, rate = soundfile.read("recording.wav")
features = WhisperFeatureExtractor.from_pretrained(folder)(samples, sampling_rate=rate, return_tensors="pt")
tokens = model.generate(**features)
print(AutoTokenizer.from_pretrained(folder).decode(tokens[0], skip_special_tokens=True))
```
"""
