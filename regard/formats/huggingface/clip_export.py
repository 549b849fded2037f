"""Write a run of images and texts as a Hugging Face CLIP folder, and check it with our reader and with transformers."""

import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save
from tokenizers import Tokenizer as Backend
from tokenizers import processors
from torch import Tensor

from ...families import clip
from ...files import JsonObject, read_json, write_json
from ...parts import Inputs, slots
from ...processors.image.processor import ImageProcessor
from ...processors.text.external import FolderTokenizer
from ...processors.text.tokenizers import END, SPECIALS, START, Tokenizer, TrainedTokenizer
from ...tasks.label.texts import TextEncoder
from ..parity import check_close, export_error, quiet
from .clip import LEGACY_END, POSITIONS, SCALE, TEXT, VISION, WHOLE, names, read, unsupported
from .gpt2_export import control_token_names
from .image_settings import PROCESSOR, write_image_settings
from .tokenizer_export import portable_tokenizer
from .weight_names import export_weights

if TYPE_CHECKING:
    from ...tasks.contrastive.task import ContrastivePredictor

__all__ = ["check", "unsupported", "usage", "write"]
SAMPLES = 8  # texts that are compared


def usage(predictor: "ContrastivePredictor") -> str:
    """The usage example of the model card."""
    return """
```python
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel

folder, labels = ".", ["a dog", "a cat"]
tokenizer, processor = AutoTokenizer.from_pretrained(folder), AutoImageProcessor.from_pretrained(folder)
model = CLIPModel.from_pretrained(folder).eval()
image = Image.open("image.png").convert("RGB")
outputs = model(**tokenizer(labels, return_tensors="pt", padding=True), **processor(image, return_tensors="pt"))
print(labels[int(outputs.logits_per_image.argmax())])
```
"""


def write(predictor: "ContrastivePredictor", draft: Path, precision: str) -> None:
    """Write everything in the folder except its README."""
    c: clip.Config = predictor.run.model
    assert isinstance(predictor.source, ImageProcessor) and isinstance(c.text.positions, slots.Learned)
    draft.mkdir()
    ids = exported_ids(predictor.tokenizer)
    theirs = {
        name: tensor.detach().float().cpu() for name, tensor in export_weights(predictor.module, names(c)).items()
    }
    theirs[SCALE], theirs[POSITIONS] = theirs[SCALE].reshape(()), theirs[POSITIONS][0]
    table = "text_model.embeddings.token_embedding.weight"
    theirs[table] = theirs[table][table_order(ids, len(theirs[table]))]
    (draft / "model.safetensors").write_bytes(
        save({name: tensor.clone().contiguous() for name, tensor in theirs.items()}, {"format": "pt"})
    )
    write_json(draft / "config.json", config(c, ids, predictor.tokenizer))
    write_json(draft / PROCESSOR, write_image_settings(predictor.source))
    write_clip_tokenizer(predictor.tokenizer, draft, c.text.positions.tokens, ids)


def config(c: clip.Config, ids: dict[int, int], tokenizer: Tokenizer) -> JsonObject:
    """The config.json of a model; `ids` maps the token ids that change to those of the folder."""
    control = {"pad_token_id": tokenizer.pad, "bos_token_id": tokenizer.start, "eos_token_id": tokenizer.end}
    control = {key: ids.get(number, number) for key, number in control.items()}
    shared = WHOLE.write(c)
    return {
        "architectures": ["CLIPModel"],
        "model_type": "clip",
        **shared,
        "text_config": {"model_type": "clip_text_model", **TEXT.write(c), **shared, **control},
        "vision_config": {"model_type": "clip_vision_model", **VISION.write(c), **shared},
        "dtype": "float32",
    }


# --- tokens ----------------------------------------------------------------------------------------------------------


def exported_ids(tokenizer: Tokenizer) -> dict[int, int]:
    """The ids that change. transformers takes eos_token_id=2 for the mark of older folders, so END gets another."""
    if tokenizer.end != LEGACY_END:
        return {}
    assert isinstance(tokenizer, TrainedTokenizer)
    return {tokenizer.end: tokenizer.unk, tokenizer.unk: tokenizer.end}


def table_order(ids: dict[int, int], size: int) -> Tensor:
    """For every row of the exported table, the row of ours."""
    return torch.tensor([ids.get(number, number) for number in range(size)])  # a swap is its own inverse


def write_clip_tokenizer(tokenizer: Tokenizer, draft: Path, max_length: int, ids: dict[int, int]) -> None:
    """tokenizer.json, which puts START and END around every text."""
    if isinstance(tokenizer, FolderTokenizer):
        backend, control = tokenizer.backend, control_token_names(tokenizer)
        start, end = control["bos_token"], control["eos_token"]
    else:
        assert isinstance(tokenizer, TrainedTokenizer)
        backend = renumber_tokens(portable_tokenizer(tokenizer, add_end=False), ids)
        roles = zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIALS, strict=True)
        start, end, control = SPECIALS[START], SPECIALS[END], dict(roles)
    numbers = [(name, backend.token_to_id(name)) for name in dict.fromkeys((start, end))]
    backend.post_processor = processors.TemplateProcessing(single=f"{start} $A {end}", special_tokens=numbers)
    (draft / "tokenizer.json").write_text(backend.to_str(pretty=True) + "\n", encoding="utf-8")
    about: JsonObject = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **control,
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": max_length,
    }
    write_json(draft / "tokenizer_config.json", about)


def renumber_tokens(backend: Backend, ids: dict[int, int]) -> Backend:
    """The tokenizer with END and UNK in each other's place."""
    if not ids:
        return backend
    content: Any = json.loads(backend.to_str())
    for token in content["added_tokens"]:
        token["id"] = ids.get(token["id"], token["id"])
    content["added_tokens"].sort(key=lambda token: token["id"])
    vocab, model = content["model"]["vocab"], content["model"]
    if isinstance(vocab, dict):
        model["vocab"] = {name: ids.get(number, number) for name, number in vocab.items()}
    else:
        model["vocab"] = [vocab[ids.get(place, place)] for place in range(len(vocab))]
    if isinstance(model.get("unk_id"), int):
        model["unk_id"] = ids.get(model["unk_id"], model["unk_id"])
    return Backend.from_str(json.dumps(content))


# --- the export is checked -------------------------------------------------------------------------------------------


@torch.no_grad()
def check(predictor: "ContrastivePredictor", draft: Path, precision: str) -> str:
    """Compare the folder, as transformers and regard read it, with the run: tokens, vectors and scores."""
    c: clip.Config = predictor.run.model
    model: Any = predictor.model.float().cpu()  # type: ignore[attr-defined]
    image: Any = c.source
    pixels = torch.rand(2, image.channels, image.image, image.image, generator=torch.Generator().manual_seed(1)) * 2 - 1
    texts, ids = sample_texts(predictor.tokenizer, predictor.texts.room), exported_ids(predictor.tokenizer)
    rows = predictor.texts.rows(texts)
    reference = model(Inputs("pixels", pixels), predictor.texts.collate(rows))
    folder = read(draft, read_json(draft / "config.json"))
    encoder = TextEncoder(folder.tokenizer, predictor.texts.room)
    expected = [[ids.get(number, number) for number in row.tolist()] for row in rows]
    folder_rows = encoder.rows(texts)
    compare_tokens("the folder", texts, [row.tolist() for row in folder_rows], expected)
    folder_scores = folder.model(Inputs("pixels", pixels), encoder.collate(folder_rows))
    difference = check_close("the folder gives scores", folder_scores, reference)
    readers = ["regard"]
    if find_spec("transformers") is not None:
        hf: Any = import_module("transformers")
        with quiet(hf):
            theirs = hf.CLIPModel.from_pretrained(draft).eval()
            tokens = hf.AutoTokenizer.from_pretrained(draft)(texts, return_tensors="pt", padding=True)
        lengths = zip(tokens["input_ids"].tolist(), tokens["attention_mask"].sum(1).tolist(), strict=True)
        compare_tokens("transformers", texts, [row[:length] for row, length in lengths], expected)
        scores = theirs(pixel_values=pixels, **tokens).logits_per_image
        difference = max(difference, check_close("transformers gives scores", scores, reference))
        readers.append(f"transformers {hf.__version__}")
    return f"{len(texts)} texts with {' and '.join(readers)}: tokens equal, scores apart by {difference:.1g} (relative)"


def sample_texts(tokenizer: Tokenizer, longest: int) -> list[str]:
    """Random texts. Where an unknown character is END, as in CLIP's vocabulary, they have none."""
    draw = torch.Generator().manual_seed(1)
    longest = min(longest, 9)
    rows = [torch.randint(tokenizer.size, (1 + i % longest,), generator=draw).tolist() for i in range(4 * SAMPLES)]
    texts = [text for text in tokenizer.decode(rows) if text.strip()]
    short = [text for text, ids in zip(texts, tokenizer.encode(texts), strict=True) if 0 < len(ids) <= longest]
    return [text for text in short if tokenizer.end not in tokenizer.encode([text])[0]][:SAMPLES]


def compare_tokens(reader: str, texts: list[str], actual: list[list[int]], expected: list[list[int]]) -> None:
    """Raise an error for the first text whose tokens differ from the expected ones."""
    for text, actual_ids, expected_ids in zip(texts, actual, expected, strict=True):
        if actual_ids != expected_ids:
            raise export_error(f"{reader} gives other tokens for {text!r}: {actual_ids} and not {expected_ids}")
