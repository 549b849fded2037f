"""Hugging Face T5 folders, of the first T5 and of 1.1: the tables of config.json and weight names."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from ...errors import UserError
from ...families import t5
from ...files import JsonMapping, JsonObject
from ...parts import slots
from ...processors.text.tokenizers import TrainedTokenizer
from .config_table import ConfigTable, Field, Fixed, Joint, Limit, Only, depth, one_class, present
from .control_ids import check_vocabulary
from .format import Folder, HuggingFaceFormat, Tensors, WeightTable
from .seq2seq import Seq2SeqFolder, TextPairProcessors, seq2seq_export
from .vocabularies import load_t5_unigram
from .weight_names import WeightRule, add_prefixes, any_of

if TYPE_CHECKING:
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


def refuse_depth(c: t5.Config) -> str | None:
    """Why numbers of layers have no place in this format."""
    if c.decoder_layers <= c.layers:
        return None
    most = f"expected at most model.layers={c.layers}: transformers cannot generate with more"
    return f"model.decoder_layers={c.decoder_layers} ({most})"


CONFIG = ConfigTable(
    (
        one_class("T5ForConditionalGeneration", required=False),
        Only("is_encoder_decoder", True, "regard reads T5 models with encoder and decoder"),
        Only("is_decoder", False, "regard reads T5 models with encoder and decoder", written=False),
        Field("vocab", "vocab_size"),
        Fixed("target_vocab", 0, "expected 0: T5 has one vocabulary, tokenizer.joint=true"),
        Field("width", "d_model"),
        Field("heads", "num_heads"),
        Field("head_width", "d_kv"),
        depth("num_layers", "num_decoder_layers"),
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


# --- weights ---------------------------------------------------------------------------------------------------------


def names(c: t5.Config) -> dict[str, str | WeightRule]:
    """Our names to theirs. T5 numbers the parts of a layer: the feed-forward is 1 in an encoder and 2 in a decoder."""
    tables = "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
    head = any_of(*tables, HEAD) if c.tied else any_of(HEAD)
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


HEAD = "lm_head.weight"
UNUSED = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)  # of some old files


def with_untied_head(tensors: Tensors, theirs: JsonMapping) -> Tensors:
    """The tensors with an untied head where ours is untied: in ours a tied head and scaled states go together.

    In their files they do not always: then an equivalent head is added.
    """
    tied, scaled = theirs.get("tie_word_embeddings") is not False, scales_states(theirs)
    shared = next((tensors[name] for name in ("shared.weight", "encoder.embed_tokens.weight") if name in tensors), None)
    head = tensors.get(HEAD, shared if tied else None)
    if shared is None or head is None:
        return tensors  # loading reports the missing tensor
    if scaled and head.equal(shared):
        return {name: tensor for name, tensor in tensors.items() if name != HEAD}
    return tensors | {HEAD: head * theirs["d_model"] ** -0.5 if scaled else head}


def complete(settings: JsonMapping, theirs: JsonMapping, tensors: Collection[str]) -> JsonObject:
    """Whether the head is tied, as the tensors show."""
    return {"tied": scales_states(theirs) and HEAD not in tensors} if tensors else {}


def read_tokenizers(folder: Folder, generation: JsonMapping) -> tuple[TrainedTokenizer, TrainedTokenizer]:
    """The tokenizer of a folder, of both sides."""
    path, c = folder.path, folder.config
    text = load_t5_unigram(path)
    numbers = {"pad_token_id": text.pad, "eos_token_id": text.end, "decoder_start_token_id": text.start}
    for key, number in numbers.items():
        value = generation.get(key)
        if value is not None and number not in (value if isinstance(value, list) else [value]):
            raise UserError(f"{path}: {key} is {generation[key]} and its tokenizer has {number}; they must agree")
    if text.size > c.vocab:
        raise UserError(f"{path} has {text.size} tokens and its model {c.vocab}; they belong to two models")
    check_vocabulary(path, text.backend.get_vocab().values(), c.vocab)
    return text, text


FORMAT: "HuggingFaceFormat[TranslatePredictor, Seq2SeqFolder]" = HuggingFaceFormat(
    "a T5 folder",
    "t5",
    {"t5": CONFIG},
    WeightTable(names, lambda c: UNUSED, with_untied_head),
    TextPairProcessors(read_tokenizers),
    seq2seq_export("t5"),
    complete,
)
