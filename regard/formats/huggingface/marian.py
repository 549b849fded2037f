"""Hugging Face Marian folders: the tables of config.json and weight names, and the tokenizers.

Marian is the published Transformer under other names, with its sinusoid in halves and a bias on the output. It has two
sentencepiece models and vocab.json, which numbers their pieces. A folder that regard exported has our tokenizer.json
instead, and target/tokenizer.json where source and target have separate vocabularies, unless the run itself started
from a Marian folder.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...errors import UserError
from ...families import transformer
from ...files import JsonMapping, JsonObject, read_json
from ...parts import slots
from ...processors.text.external import MarianTokenizer, sentencepiece_processor
from ...processors.text.tokenizers import Tokenizer, load_tokenizer
from .config_table import (
    ACTIVATIONS,
    ConfigTable,
    Field,
    Fixed,
    Joint,
    Limit,
    Only,
    both_stacks,
    choice,
    depth,
    one_class,
    present,
)
from .files import parse_config
from .format import Folder, HuggingFaceFormat, Tensors, WeightTable
from .generation import max_positions
from .seq2seq import Seq2SeqFolder, TextPairProcessors, seq2seq_export
from .tokenizer_export import TARGET_TOKENIZER_FILE, TOKENIZER_FILE
from .weight_names import WeightRule, add_prefixes, any_of, as_row

if TYPE_CHECKING:
    from ...tasks.translate.task import TranslatePredictor

READS_WIDTH = re.compile(r"(source|target|head)\.weight|.*\.(query|key|value|into)\.weight")  # columns: the width
WRITES_WIDTH = re.compile(r".*\.(out|norm)\.(weight|bias)")  # rows: the width

# --- config.json -----------------------------------------------------------------------------------------------------


def refuse_stretched_sinusoid(c: transformer.Config) -> str | None:
    """Why other sinusoids have no place in this format."""
    if getattr(c.positions, "layout", None) != "whisper":
        return None
    return "model.positions.layout=whisper (expected interleaved or halves)"


WITHOUT, SHARED = "regard reads Marian folders without it", "share_encoder_decoder_embeddings"
CONFIG = ConfigTable(
    (
        one_class("MarianMTModel", required=False),
        Only("is_encoder_decoder", True, "regard reads Marian models with encoder and decoder"),
        Only("normalize_before", False, WITHOUT, written=False),
        Only("normalize_embedding", False, WITHOUT, written=False),
        Only("add_final_layer_norm", False, WITHOUT, written=False),
        Field("vocab", "vocab_size"),
        Joint(
            lambda theirs: {"target_vocab": 0 if present(theirs, SHARED, True) else theirs["decoder_vocab_size"]},
            lambda c: {"decoder_vocab_size": c.target_vocab or c.vocab, SHARED: not c.target_vocab},
        ),
        Field("width", "d_model"),
        both_stacks("heads", "attention_heads"),
        depth("encoder_layers", "decoder_layers"),
        both_stacks("inner", "ffn_dim"),
        Field("dropout", "dropout", 0.1),
        Fixed("prenorm", False, "expected false: Marian normalizes after each sublayer"),
        Field("tied", "tie_word_embeddings", True),
        Field("scaled", "scale_embedding", False),
        Fixed("biased", True),  # the export adds a bias of zeros
        Fixed("attention.kind", "dense", "expected dense"),
        Fixed("attention.scaled", True, "expected true: Marian scales attention scores"),
        Field("attention.dropout", "attention_dropout", 0.0),
        Fixed("positions.kind", "sinusoid", "expected sinusoid"),
        Fixed("positions.layout", "halves"),  # the export reorders an interleaved one
        Limit(refuse_stretched_sinusoid),
        Fixed("feed.kind", "plain", "expected plain"),
        Field("feed.act", "activation_function", "gelu", **choice("activation_function", ACTIVATIONS)),
        Field("feed.dropout", "activation_dropout", 0.0),
        Fixed("norm.kind", "layer", "expected layer"),
        Fixed("norm.eps", 1e-5, "expected 1e-05"),
    )
)


# --- weights ---------------------------------------------------------------------------------------------------------

COMPUTED = (r"model\.(en|de)coder\.embed_positions\.weight",)  # the sinusoid, which some files hold


def attention_names(ours: str, theirs: str) -> dict[str, str | WeightRule]:
    """Their names of the weights of an attention module and its norm, by ours."""
    maps = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
    return add_prefixes(ours, theirs, maps) | {f"{ours}_residual.norm": f"{theirs}_layer_norm"}


def names(c: transformer.Config) -> dict[str, str | WeightRule]:
    """Our weight names to theirs."""
    layer = attention_names("attention", "self_attn") | {
        "feed.into": "fc1",
        "feed.out": "fc2",
        "feed_residual.norm": "final_layer_norm",
    }
    source, target = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
    shared = () if c.target_vocab else ("model.shared.weight",)
    return (
        add_prefixes("encoder.layers.*", "model.encoder.layers.*", layer)
        | add_prefixes("decoder.layers.*", "model.decoder.layers.*", layer | attention_names("cross", "encoder_attn"))
        | {"source.weight": any_of(*shared, source), "target.weight": any_of(*shared, target)}
        | {
            "head.weight": any_of("lm_head.weight", *((*shared, target) if c.tied else ())),
            "head.bias": as_row("final_logits_bias"),
        }
    )


def as_marian(model: nn.Module, c: transformer.Config) -> tuple[nn.Module, transformer.Config]:
    """The same function as a model with Marian's sinusoid in halves and a bias on the output."""
    state: dict[str, Tensor] = dict(model.state_dict())
    if isinstance(c.positions, slots.Sinusoid) and c.positions.layout == "interleaved":
        state = to_half_layout(state, c.width)
    state.setdefault("head.bias", torch.zeros(len(state["head.weight"])))
    c = c.model_copy(update={"positions": slots.Sinusoid(layout="halves"), "biased": True})
    twin = transformer.Model(c)
    twin.load_state_dict(state)
    return twin.eval(), c


def to_half_layout(state: Mapping[str, Tensor], width: int) -> dict[str, Tensor]:
    """Permute the width: even positions first, then odd ones, so that an interleaved sinusoid becomes halves.

    Every map that reads or writes the width is permuted with it, so the function stays the same.
    """
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])

    def permute(name: str, tensor: Tensor) -> Tensor:
        if READS_WIDTH.fullmatch(name):
            return tensor[:, order]
        return tensor[order] if WRITES_WIDTH.fullmatch(name) else tensor

    return {name: permute(name, tensor) for name, tensor in state.items()}


def untied_tables(tensors: Tensors, predictor: "TranslatePredictor") -> Tensors:
    """The tensors as `save_pretrained` would write them: a tied head once, and untied stacks with their own tables."""
    c: transformer.Config = predictor.run.model
    if c.tied:
        return {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}
    tables = () if c.target_vocab else ("encoder", "decoder")  # transformers then ties nothing at all
    return tensors | {f"model.{stack}.embed_tokens.weight": tensors["model.shared.weight"] for stack in tables}


# --- tokenizers ------------------------------------------------------------------------------------------------------


def read_tokenizers(folder: Folder, generation: JsonMapping) -> tuple[Tokenizer, Tokenizer]:
    """ExportSource and target tokenizer of a Marian folder."""
    path, config = folder.path, folder.theirs
    if not (path / "source.spm").is_file() and ("regard" in config or (path / TOKENIZER_FILE).is_file()):
        return _regard_tokenizers(path, config)
    if not (path / "vocab.json").is_file():
        raise UserError(f"{path} has no vocab.json; a Marian folder needs source.spm, target.spm and vocab.json")
    return _marian_tokenizers(path, config, _sentencepiece(path, "source.spm"), _sentencepiece(path, "target.spm"))


def _sentencepiece(path: Path, name: str) -> Any:
    if not (path / name).is_file():
        raise UserError(f"{path} has no {name}; a Marian folder needs source.spm, target.spm and vocab.json")
    try:
        return sentencepiece_processor(model_file=str(path / name))
    except (RuntimeError, OSError) as error:
        raise UserError(f"{path / name} is no sentencepiece model ({error}); fetch the folder again") from error


def _regard_tokenizers(path: Path, config: JsonMapping) -> tuple[Tokenizer, Tokenizer]:
    source = load_tokenizer(path / TOKENIZER_FILE)
    shared = config.get("share_encoder_decoder_embeddings", True)
    target = source if shared else load_tokenizer(path / TARGET_TOKENIZER_FILE)
    ids = {"pad_token_id": source.pad, "decoder_start_token_id": source.start, "eos_token_id": source.end}
    for key, token in ids.items():
        if config.get(key) != token:
            raise UserError(
                f"{path / 'config.json'}: {key} is {config.get(key)} and {token} in {TOKENIZER_FILE}; they must agree"
            )
    for key, tokenizer in (("vocab_size", source), ("decoder_vocab_size", target)):
        if config.get(key, tokenizer.size) != tokenizer.size:
            raise UserError(
                f"{path / 'config.json'}: {key} is {config[key]} and its tokenizer has {tokenizer.size} entries; "
                "fetch the folder again"
            )
    return source, target


def _marian_tokenizers(
    path: Path, config: JsonMapping, source: Any, target: Any
) -> tuple[MarianTokenizer, MarianTokenizer]:
    vocab = read_json(path / "vocab.json")
    separate = (path / "target_vocab.json").is_file() and not config.get("share_encoder_decoder_embeddings", True)
    target_vocab = read_json(path / "target_vocab.json") if separate else vocab
    keys = {"pad": "pad_token_id", "end": "eos_token_id", "start": "decoder_start_token_id"}
    ids = parse_config(path, config, lambda theirs: {role: theirs[key] for role, key in keys.items()})
    joiner = target if separate else source  # as transformers does

    def make_tokenizer(encoder: Any, decoder: Any, vocab: JsonMapping, file: str) -> MarianTokenizer:
        def make(vocab: JsonMapping) -> MarianTokenizer:
            return MarianTokenizer(encoder, decoder, vocab, ids | {"unk": vocab["<unk>"]})

        return parse_config(path, vocab, make, file)

    target_file = "target_vocab.json" if separate else "vocab.json"
    return make_tokenizer(source, source, vocab, "vocab.json"), make_tokenizer(
        target, joiner, target_vocab, target_file
    )


class MarianProcessors(TextPairProcessors):
    """The processors of text pairs; config.json also has the number of positions."""

    def write(self, predictor: "TranslatePredictor", draft: Path) -> JsonObject:
        """Write the tokenizers; return the keys of config.json."""
        unused = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "forced_eos_token_id": None}
        return {**super().write(predictor, draft), **unused, "max_position_embeddings": max_positions(predictor.run)}


FORMAT: "HuggingFaceFormat[TranslatePredictor, Seq2SeqFolder]" = HuggingFaceFormat(
    "a Marian folder",
    "transformer",
    {"marian": CONFIG},
    WeightTable(names, lambda c: COMPUTED, write=untied_tables, twin=as_marian),
    MarianProcessors(read_tokenizers),
    seq2seq_export("marian"),
    size="marian",
)
