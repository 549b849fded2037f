"""Hugging Face CLIP folders: the tables of config.json and weight names, the tokenizer and its export."""

import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer as Backend
from tokenizers import processors
from torch import Tensor, nn

from ...errors import UserError
from ...families import clip
from ...files import JsonMapping, JsonObject, write_json
from ...parts import Inputs, slots
from ...processors.image.processor import ImageProcessor
from ...processors.text.external import FolderTokenizer
from ...processors.text.tokenizers import END, SPECIALS, START, Tokenizer, TrainedTokenizer
from ...tasks.label.texts import TextEncoder
from ..parity import compare_tokens
from . import causal, images, vit
from .config_table import ACTIVATIONS, ConfigTable, Field, Fixed, Joint, Limit, Row, choice, one_class
from .control_ids import check_vocabulary
from .files import PROCESSOR
from .format import Export, Folder, HuggingFaceFormat, Tensors, WeightTable
from .generation import control_ids
from .images import read_image, write_image_settings
from .tokenizer_export import portable_tokenizer, tokenizer_config, write_tokenizer_json
from .vit import square
from .weight_names import WeightRule, add_prefixes

if TYPE_CHECKING:
    from ...tasks.contrastive.task import ContrastivePredictor

LEGACY_END = 2  # eos_token_id of older folders: the text ends with the highest id, whatever it is
SAMPLES = 8  # texts that are compared
LAYER = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.out_proj",
    "attention_residual.norm": "layer_norm1",
    "feed_residual.norm": "layer_norm2",
    "feed.into": "mlp.fc1",
    "feed.out": "mlp.fc2",
}
POSITIONS = "vision_model.embeddings.position_embedding.weight"
SCALE, VOCABULARY = "logit_scale", "text_model.embeddings.token_embedding.weight"


def tower(ours: str, width: int, heads: int, inner: int) -> tuple[Row, ...]:
    """The rows of one tower; the numbers are the defaults of absent keys."""
    return (
        Field(f"{ours}.width", "hidden_size", width),
        Field(f"{ours}.heads", "num_attention_heads", heads),
        Field(f"{ours}.layers", "num_hidden_layers", 12),
        Field(f"{ours}.inner", "intermediate_size", inner),
        Fixed(f"{ours}.dropout", 0.0),
        Fixed(f"{ours}.depth_dropout", 0.0),
        Fixed(f"{ours}.attention.kind", "dense", "expected dense"),
        Fixed(f"{ours}.attention.scaled", True, "expected true: CLIP scales its scores"),
        Field(f"{ours}.attention.dropout", "attention_dropout", 0.0),
        Fixed(f"{ours}.feed.kind", "plain", "expected plain"),
        Field(f"{ours}.feed.act", "hidden_act", "quick_gelu", **choice("hidden_act", ACTIVATIONS)),
        Fixed(f"{ours}.feed.dropout", 0.0),
        Fixed(f"{ours}.norm.kind", "layer", "expected layer"),
        Field(f"{ours}.norm.eps", "layer_norm_eps", 1e-5),
    )


def read_partial(theirs: JsonMapping) -> JsonObject:
    """What becomes of images that are not whole patches."""
    return {"source.partial_patches": vit.read_partial(theirs, patch=32)["partial_patches"]}


def only_images(c: clip.Config) -> str | None:
    """Why a model cannot be a Hugging Face CLIP: its source is not images; None if it is."""
    return None if c.source.kind == "image" else f"model.source.kind={c.source.kind} (expected image)"


TEXT = ConfigTable(
    (
        Field("vocab", "vocab_size", 49408),
        *tower("text", 512, 8, 2048),
        Fixed("text.positions.kind", "learned", "expected learned"),
        Field("text.positions.tokens", "max_position_embeddings", 77),
        Fixed("text.causal", True, "expected true"),
        Fixed("text.pool", "last", "expected last: the state of END"),
    )
)
VISION = ConfigTable(
    (
        Limit(only_images),
        Fixed("source.kind", "image"),
        Joint(read_partial, lambda c: {}),
        Field("source.image", "image_size", 224, square("image_size")),
        Field("source.patch", "patch_size", 32, square("patch_size")),
        Field("source.channels", "num_channels", 3),
        Fixed("source.stem", (), "expected none"),
        *tower("source", 768, 12, 3072),
        Fixed("source.pool", "first", "expected first: a class token"),
    )
)


def read_towers(theirs: JsonMapping) -> JsonObject:
    """The settings of both towers; an absent tower has the default of every key."""
    return TEXT.read(tower_config(theirs, "text")) | VISION.read(tower_config(theirs, "vision"))


def tower_config(theirs: JsonMapping, name: str) -> JsonMapping:
    """The keys of a tower. Those of older folders win, as in transformers, and their absent keys mean defaults."""
    older, newer = theirs.get(f"{name}_config_dict"), theirs.get(f"{name}_config")
    return (newer or {}) if older is None else older


def write_towers(c: clip.Config) -> JsonObject:
    """The keys of both towers."""
    shared = {"projection_dim": c.width}
    return {
        "text_config": {"model_type": "clip_text_model", **TEXT.write(c), **shared},
        "vision_config": {"model_type": "clip_vision_model", **VISION.write(c), **shared},
    }


def refuse_towers(c: clip.Config) -> list[str]:
    """What the towers of the format cannot represent."""
    refusal = only_images(c)
    return [refusal] if refusal else [*VISION.unsupported(c), *TEXT.unsupported(c)]


CONFIG = ConfigTable(
    (
        one_class("CLIPModel", required=False),
        Field("width", "projection_dim", 512),
        Joint(read_towers, write_towers),
        Limit(refuse_towers),
    )
)


def names(c: clip.Config) -> dict[str, str | WeightRule]:
    """Our tensors to theirs."""
    vision, text = "vision_model", "text_model"
    return {
        "log_scale": SCALE,
        "text_projection": "text_projection",
        "source_projection": "visual_projection",
        "source.first": f"{vision}.embeddings.class_embedding",
        "source.patches.project": f"{vision}.embeddings.patch_embedding",
        "source.positions.table": POSITIONS,
        "source.norm": f"{vision}.pre_layrnorm",
        "source.encoder.norm": f"{vision}.post_layernorm",
        **add_prefixes("source.encoder.layers.*", f"{vision}.encoder.layers.*", LAYER),
        "text.embed": f"{text}.embeddings.token_embedding",
        "text.encoder.positions.table": f"{text}.embeddings.position_embedding",
        "text.encoder.norm": f"{text}.final_layer_norm",
        **add_prefixes("text.encoder.layers.*", f"{text}.encoder.layers.*", LAYER),
    }


def our_shapes(tensors: Tensors, theirs: JsonMapping) -> Tensors:
    """Their tensors in our shapes: the scale has one entry, the positions of images a first dimension of one."""
    shaped = {SCALE: lambda tensor: tensor.reshape(1), POSITIONS: lambda tensor: tensor[None]}
    return {name: shaped[name](tensor) if name in shaped else tensor for name, tensor in tensors.items()}


def their_shapes(tensors: Tensors, predictor: "ContrastivePredictor") -> Tensors:
    """The tensors in their shapes, with the rows of the vocabulary in the order of the exported tokenizer."""
    ids, table = exported_ids(predictor.tokenizer), tensors[VOCABULARY]
    return tensors | {
        SCALE: tensors[SCALE].reshape(()),
        POSITIONS: tensors[POSITIONS][0],
        VOCABULARY: table[table_order(ids, len(table))],
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
        backend, control = tokenizer.backend, causal.control_token_names(tokenizer)
        start, end = control["bos_token"], control["eos_token"]
    else:
        assert isinstance(tokenizer, TrainedTokenizer)
        backend = renumber_tokens(portable_tokenizer(tokenizer, add_end=False), ids)
        roles = zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIALS, strict=True)
        start, end, control = SPECIALS[START], SPECIALS[END], dict(roles)
    numbers = [(name, backend.token_to_id(name)) for name in dict.fromkeys((start, end))]
    backend.post_processor = processors.TemplateProcessing(single=f"{start} $A {end}", special_tokens=numbers)
    write_tokenizer_json(draft, backend, tokenizer_config(tokenizer, max_length) | control)


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


def read_tokenizer(path: Path, text: JsonMapping, c: clip.Config) -> FolderTokenizer:
    """The tokenizer, whose END must be the token whose state their model takes."""
    if not (path / "tokenizer.json").is_file():
        raise UserError(
            f"{path} has no tokenizer.json; write it with transformers: AutoTokenizer.from_pretrained({str(path)!r})"
            f".save_pretrained({str(path)!r})"
        )
    tokenizer = causal.tokenizer(path, text)
    check_vocabulary(path, tokenizer.backend.get_vocab().values(), c.vocab)
    ends = {LEGACY_END: max(tokenizer.backend.get_vocab().values())}
    number = text.get("eos_token_id", 49407)
    if ends.get(number, number) != tokenizer.end:
        raise UserError(
            f"{path}: the tokenizer ends a text with id {tokenizer.end}, and the model takes the state of id "
            f"{ends.get(number, number)} (text_config.eos_token_id={number}); use the tokenizer of this model"
        )
    assert isinstance(c.text.positions, slots.Learned)
    return tokenizer


# --- the folder ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClipFolder(Folder):
    """The contents of a CLIP folder."""

    source: ImageProcessor
    tokenizer: FolderTokenizer


class ClipProcessors:
    """An image processor and a tokenizer."""

    def read(self, folder: Folder) -> ClipFolder:
        """The folder with its processors; without an image processor, as CLIP is published."""
        c = folder.config
        published = images.class_default(
            images.CLIP, ImageProcessor(patch=c.source.patch), c.source.channels,
            size={"shortest_edge": c.source.image}, crop_size=c.source.image,
        )  # fmt: skip
        text = read_tokenizer(folder.path, tower_config(folder.theirs, "text"), c)
        return ClipFolder(**vars(folder), source=read_image(folder.path, published, images.CLIP), tokenizer=text)

    def load(self, folder: ClipFolder, overrides: JsonMapping) -> "ContrastivePredictor":
        """The predictor of a CLIP folder."""
        task = import_module("regard.tasks.contrastive.task")
        predictor: ContrastivePredictor = task.from_folder(folder, overrides)
        return predictor

    def write(self, predictor: "ContrastivePredictor", draft: Path) -> JsonObject:
        """Write the processors; return the tower of texts with its control tokens."""
        c, text = predictor.run.model, predictor.tokenizer
        assert isinstance(predictor.source, ImageProcessor) and isinstance(c.text.positions, slots.Learned)
        ids = exported_ids(text)
        write_json(draft / PROCESSOR, write_image_settings(predictor.source))
        write_clip_tokenizer(text, draft, c.text.positions.tokens, ids)
        control = {key: ids.get(number, number) for key, number in control_ids(text).items()}
        return {"text_config": write_towers(c)["text_config"] | control}


# --- the export is compared ------------------------------------------------------------------------------------------


class ClipSample:
    """A few random texts and images, and their scores."""

    def __init__(self, predictor: "ContrastivePredictor") -> None:
        image: Any = predictor.run.model.source
        shape = 2, image.channels, image.image, image.image
        self.pixels = torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 2 - 1
        self.room, ids = predictor.texts.room, exported_ids(predictor.tokenizer)
        self.texts = sample_texts(predictor.tokenizer, self.room)
        rows = predictor.texts.rows(self.texts)
        self.tokens = [[ids.get(number, number) for number in row.tolist()] for row in rows]  # of the folder
        self.inputs = f"{len(self.texts)} texts"
        self.expected = [predictor.module(Inputs("pixels", self.pixels), predictor.texts.collate(rows))]

    def ours(self, folder: ClipFolder) -> list[Tensor]:
        encoder = TextEncoder(folder.tokenizer, self.room)
        rows = encoder.rows(self.texts)
        compare_tokens("the folder", self.texts, [row.tolist() for row in rows], self.tokens)
        return [folder.model(Inputs("pixels", self.pixels), encoder.collate(rows))]

    def theirs(self, model: nn.Module, draft: Path, hf: ModuleType) -> list[Tensor]:
        tokens = hf.AutoTokenizer.from_pretrained(draft)(self.texts, return_tensors="pt", padding=True)
        lengths = zip(tokens["input_ids"].tolist(), tokens["attention_mask"].sum(1).tolist(), strict=True)
        compare_tokens("transformers", self.texts, [row[:length] for row, length in lengths], self.tokens)
        return [model(pixel_values=self.pixels, **tokens).logits_per_image]

    def findings(self) -> str:
        return "tokens equal, "


def sample_texts(tokenizer: Tokenizer, longest: int) -> list[str]:
    """Random texts. Where an unknown character is END, as in CLIP's vocabulary, they have none."""
    draw = torch.Generator().manual_seed(1)
    longest = min(longest, 9)
    rows = [torch.randint(tokenizer.size, (1 + i % longest,), generator=draw).tolist() for i in range(4 * SAMPLES)]
    texts = [text for text in tokenizer.decode(rows) if text.strip()]
    short = [text for text, ids in zip(texts, tokenizer.encode(texts), strict=True) if 0 < len(ids) <= longest]
    return [text for text in short if tokenizer.end not in tokenizer.encode([text])[0]][:SAMPLES]


USAGE = """
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
FORMAT: "HuggingFaceFormat[ContrastivePredictor, ClipFolder]" = HuggingFaceFormat(
    "a CLIP folder",
    "clip",
    {"clip": CONFIG},
    WeightTable(names, lambda c: (r".*\.embeddings\.position_ids",), our_shapes, their_shapes),
    ClipProcessors(),
    Export(lambda c: "clip", ClipSample, lambda predictor: USAGE, lambda c: "zero-shot-image-classification"),
    size="",
)
