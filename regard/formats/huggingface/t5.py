"""Hugging Face T5 folders, of the first T5 and of 1.1: the tables of config.json and weight names, and their reader."""

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from ...config.run import Run, change_settings
from ...errors import UserError
from ...families import t5
from ...files import JsonMapping, JsonObject
from ...parts import slots
from ...processors.text.tokenizers import TrainedTokenizer
from .config_table import ConfigTable, Field, Fixed, Joint, Limit, Only, present
from .control_ids import check_control_ids, check_vocabulary
from .folder import parse_config, read_weights
from .generation import read_generation_config, translate_decode
from .vocabularies import load_t5_unigram
from .weight_names import WeightRule, add_prefixes, any_of, load_weights

if TYPE_CHECKING:
    from ...tasks.translate.settings import TranslateRun
    from ...tasks.translate.task import TranslatePredictor

# --- config.json -----------------------------------------------------------------------------------------------------

FEEDS = {
    "relu": ("plain", "relu"),
    "gelu": ("plain", "gelu"),
    "gelu_new": ("plain", "gelu_tanh"),
    "silu": ("plain", "silu"),
    "swish": ("plain", "silu"),
    "gated-relu": ("gated", "relu"),
    "gated-gelu": ("gated", "gelu_tanh"),  # transformers takes it for gelu_new
    "gated-gelu_new": ("gated", "gelu_tanh"),
    "gated-silu": ("gated", "silu"),
    "gated-swish": ("gated", "silu"),
}  # feed_forward_proj to our feed.kind and feed.act; of several names the first is written
FEED_NAMES = {ours: theirs for theirs, ours in reversed(FEEDS.items())}


def read_feed(theirs: JsonMapping) -> JsonObject:
    """The feed-forward slot from their config."""
    name = present(theirs, "feed_forward_proj", "relu")
    if name not in FEEDS:
        raise ValueError(f"feed_forward_proj is {name!r}; expected one of {', '.join(FEEDS)}")
    kind, act = FEEDS[name]
    return {"feed.kind": kind, "feed.act": act}


def refuse_feed(c: t5.Config) -> str | None:
    """Why a feed-forward has no place in this format."""
    acts = [act for kind, act in FEED_NAMES if kind == c.feed.kind]
    return None if c.feed.act in acts else f"model.feed.act={c.feed.act} of {c.feed.kind} (expected {', '.join(acts)})"


def scales_states(theirs: JsonMapping) -> bool:
    """True if the decoder's output is scaled, which goes with a tied head unless config.json says otherwise."""
    return bool(theirs.get("scale_decoder_outputs", theirs.get("tie_word_embeddings") is not False))


def read_depth(theirs: JsonMapping) -> JsonObject:
    """Ours is 0 where encoder and decoder are equally deep."""
    layers, decoder = theirs["num_layers"], present(theirs, "num_decoder_layers", 0)
    return {"layers": layers, "decoder_layers": 0 if decoder == layers else decoder}


def write_depth(c: t5.Config) -> JsonObject:
    """Their keys of the numbers of layers."""
    return {"num_layers": c.layers, "num_decoder_layers": c.decoder_layers or c.layers}


def refuse_depth(c: t5.Config) -> str | None:
    """Why numbers of layers have no place in this format."""
    if c.decoder_layers <= c.layers:
        return None
    most = f"expected at most model.layers={c.layers}: transformers cannot generate with more"
    return f"model.decoder_layers={c.decoder_layers} ({most})"


CONFIG = ConfigTable(
    (
        Only("is_encoder_decoder", True, "regard reads T5 models with encoder and decoder"),
        Only("is_decoder", False, "regard reads T5 models with encoder and decoder", written=False),
        Field("vocab", "vocab_size"),
        Fixed("target_vocab", 0, "expected 0: T5 has one vocabulary, tokenizer.joint=true"),
        Field("width", "d_model"),
        Field("heads", "num_heads"),
        Field("head_width", "d_kv"),
        Joint(read_depth, write_depth),
        Limit(refuse_depth),
        Field("inner", "d_ff"),
        Field("dropout", "dropout_rate", 0.1),
        Field("attention.dropout", "dropout_rate", 0.1, write=None),
        Field("feed.dropout", "dropout_rate", 0.1, write=None),
        Joint(
            lambda theirs: {"tied": theirs.get("tie_word_embeddings") is not False and scales_states(theirs)},
            lambda c: {"tie_word_embeddings": c.tied, "scale_decoder_outputs": c.tied},
        ),
        Fixed("attention.kind", "dense", "expected dense"),
        Fixed("attention.scaled", False, "expected false: T5 does not scale its scores"),
        Fixed("positions.kind", "buckets", "expected buckets"),
        Field("positions.buckets", "relative_attention_num_buckets", 32),
        Field("positions.far", "relative_attention_max_distance", 128),
        Joint(read_feed, lambda c: {"feed_forward_proj": FEED_NAMES[c.feed.kind, c.feed.act]}),
        Limit(refuse_feed),
        Fixed("norm.kind", "rms", "expected rms"),
        Field("norm.eps", "layer_norm_epsilon", 1e-6),
    )
)


def from_huggingface(theirs: JsonMapping) -> t5.Config:
    """Our Config of a config.json; ValueError if refused."""
    return t5.Config.model_validate(CONFIG.read(theirs) | {"size": "huggingface"})


# --- weights ---------------------------------------------------------------------------------------------------------


def names(c: t5.Config) -> dict[str, str | WeightRule]:
    """Our names to theirs. T5 numbers the parts of a layer: the feed-forward is 1 in an encoder and 2 in a decoder."""
    tables = "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
    head = any_of(*tables, "lm_head.weight") if c.tied else any_of("lm_head.weight")
    table: dict[str, str | WeightRule] = {"head.weight": head}
    table |= {f"{embedding}.weight": head if c.tied else any_of(*tables) for embedding in ("source", "target")}
    attention = _attention_names("attention", "layer.0", "SelfAttention")
    cross = _attention_names("cross", "layer.1", "EncDecAttention")
    for stack, layer in (
        ("encoder", attention | _feed_names(1, c)),
        ("decoder", attention | cross | _feed_names(2, c)),
    ):
        table |= add_prefixes(f"{stack}.layers.*", f"{stack}.block.*", layer) | {
            f"{stack}.norm": f"{stack}.final_layer_norm"
        }
        table[f"{stack}.positions.table"] = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
    return table


def _attention_names(ours: str, part: str, theirs: str) -> dict[str, str | WeightRule]:
    letters = add_prefixes(ours, f"{part}.{theirs}", {"query": "q", "key": "k", "value": "v", "out": "o"})
    return letters | {f"{ours}_residual.norm": f"{part}.layer_norm"}


def _feed_names(part: int, c: t5.Config) -> dict[str, str | WeightRule]:
    gated = {"gate": "wi_0", "into": "wi_1", "out": "wo"}
    maps = gated if isinstance(c.feed, slots.Gated) else {"into": "wi", "out": "wo"}
    return add_prefixes("feed", f"layer.{part}.DenseReluDense", maps) | {
        "feed_residual.norm": f"layer.{part}.layer_norm"
    }


UNUSED = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)  # of some old files


# --- the folder ------------------------------------------------------------------------------------------------------


def load_predictor(path: Path, config: JsonMapping, overrides: JsonMapping) -> "TranslatePredictor":
    """A predictor from text to text."""
    from ...device import resolve_device
    from ...tasks.translate.task import TranslatePredictor

    ours, model = read(path, config)
    generation = read_generation_config(path, config)
    check_control_ids(path, config, ours.vocab)
    text = read_tokenizer(path, generation, ours)
    decode, filters = translate_decode(path, config, generation, text, ours.vocab)
    run: TranslateRun = change_settings(Run(task="translate", model=ours, decode=decode), overrides)
    return TranslatePredictor(run, model, text, text, resolve_device(run.device), filters)


def read(path: Path, config: JsonMapping) -> tuple[t5.Config, t5.Model]:
    """Read a folder of this family."""
    tensors = read_weights(path)
    ours = parse_config(path, config, from_huggingface)
    ours = ours.model_copy(update={"tied": tie_head(tensors, config)})
    model = t5.Model(ours)
    load_weights(model, tensors, names(ours), UNUSED)
    return ours, model


def tie_head(tensors: dict[str, Tensor], config: JsonMapping) -> bool:
    """True if our model ties its head to the embeddings.

    In ours a tied head and scaled states go together, in their files not always. Where they differ, an equivalent
    untied head is put into `tensors`.
    """
    tied = config.get("tie_word_embeddings") is not False
    scaled = scales_states(config)
    shared = next((tensors[name] for name in ("shared.weight", "encoder.embed_tokens.weight") if name in tensors), None)
    head = tensors.get("lm_head.weight", shared if tied else None)
    if shared is None or head is None:
        return scaled  # loading reports the missing tensor
    if scaled and head.equal(shared):
        return True
    tensors["lm_head.weight"] = head * config["d_model"] ** -0.5 if scaled else head
    return False


def read_tokenizer(path: Path, generation: JsonMapping, ours: t5.Config) -> TrainedTokenizer:
    """The tokenizer of a folder."""
    text = load_t5_unigram(path)
    numbers = {"pad_token_id": text.pad, "eos_token_id": text.end, "decoder_start_token_id": text.start}
    for key, number in numbers.items():
        value = generation.get(key)
        if value is not None and number not in (value if isinstance(value, list) else [value]):
            raise UserError(f"{path}: {key} is {generation[key]} and its tokenizer has {number}; they must agree")
    if text.size > ours.vocab:
        raise UserError(f"{path} has {text.size} tokens and its model {ours.vocab}; they belong to two models")
    check_vocabulary(path, text.backend.get_vocab().values(), ours.vocab)
    return text
