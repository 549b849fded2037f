"""Hugging Face CLIP folders: the tables of config.json, weight names, tokenizer and image processor; the reader."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from ...errors import UserError
from ...families import clip
from ...files import JsonMapping, read_optional_json
from ...parts import slots
from ...processors.image.processor import ImageProcessor
from ...processors.text.external import FolderTokenizer
from . import causal
from .bert import ACTIVATIONS
from .config_table import ConfigTable, Field, Fixed, Limit, Row, choice
from .control_ids import check_vocabulary
from .folder import parse_config, read_weights
from .image_settings import PROCESSOR, read_image_settings
from .weight_names import WeightRule, add_prefixes, load_weights

if TYPE_CHECKING:
    from ...tasks.contrastive.task import ContrastivePredictor

LEGACY_END = 2  # eos_token_id of older folders: the text ends with the highest id, whatever it is
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
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
SCALE = "logit_scale"


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
        Field("source.image", "image_size", 224),
        Field("source.patch", "patch_size", 32),
        Field("source.channels", "num_channels", 3),
        Fixed("source.stem", (), "expected none"),
        *tower("source", 768, 12, 3072),
        Fixed("source.pool", "first", "expected first: a class token"),
    )
)
WHOLE = ConfigTable((Field("width", "projection_dim", 512),))


def from_huggingface(theirs: JsonMapping) -> clip.Config:
    """Our Config of their config.json; an absent tower has the default of every key."""
    settings = WHOLE.read(theirs)
    for table, name in ((TEXT, "text_config"), (VISION, "vision_config")):
        settings |= table.read(theirs.get(name) or {})
    return clip.Config.model_validate(settings)


def unsupported(c: clip.Config) -> list[str]:
    """Settings of ours that their model cannot have."""
    refusal = only_images(c)
    return [refusal] if refusal else [*VISION.unsupported(c), *TEXT.unsupported(c)]


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


def our_shapes(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors in our shapes: the scale has one entry, the positions of images a first dimension of one."""
    shaped = {SCALE: lambda tensor: tensor.reshape(1), POSITIONS: lambda tensor: tensor[None]}
    return {name: shaped[name](tensor) if name in shaped else tensor for name, tensor in theirs.items()}


# --- the folder ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClipFolder:
    """The contents of a CLIP folder."""

    config: clip.Config
    model: clip.Model
    source: ImageProcessor
    tokenizer: FolderTokenizer


def read(path: Path, config: JsonMapping) -> ClipFolder:
    """The contents of a CLIP folder whose config.json is `config`."""
    ours = parse_config(path, config, from_huggingface)
    computed = (r".*\.embeddings\.position_ids",)
    model = load_weights(clip.Model(ours), our_shapes(read_weights(path)), names(ours), computed)
    about = read_optional_json(path / PROCESSOR) or read_optional_json(path / "processor_config.json").get(
        "image_processor", {}
    )
    image = parse_config(path, about, lambda theirs: read_processor(theirs, ours), PROCESSOR)
    return ClipFolder(ours, model, image, read_tokenizer(path, config.get("text_config") or {}, ours))


def read_processor(theirs: JsonMapping, c: clip.Config) -> ImageProcessor:
    """Our processor of their preprocessor_config.json; without one, as CLIP is published."""
    side, patch = c.source.image, c.source.patch  # type: ignore[union-attr]  # they have image towers only
    default = ImageProcessor(resize=side, crop=side, resample="bicubic", mean=MEAN, std=STD, patch=patch)
    return read_image_settings(theirs, default)


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


def load_predictor(path: Path, config: JsonMapping, overrides: JsonMapping) -> "ContrastivePredictor":
    """The predictor of a CLIP folder."""
    predictor: ContrastivePredictor = import_module("regard.tasks.contrastive.task").from_folder(
        read(path, config), overrides
    )
    return predictor
