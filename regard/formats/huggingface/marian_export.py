"""A run as a Hugging Face Marian folder: `transformers` and our own reader give the same logits, tokens and texts.

Marian is the published Transformer under other names, with its sinusoid in halves and a bias on the output.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, processors
from torch import Tensor

from ...config.run import Run
from ...config.schema import NEUTRAL_SAMPLING
from ...families import transformer
from ...files import write_json
from ...parts import slots
from ...processors.tokenizers import END, SPECIALS, TrainedTokenizer, byte_letters, byte_values
from .folder import generation_settings
from .marian import TARGET_TOKENIZER_FILE, TOKENIZER_FILE
from .weight_names import export_weights

SAVED_DECODE = {"kind", "beam", "length_penalty", "early_stopping", "max_tokens", *NEUTRAL_SAMPLING}
READS_WIDTH = re.compile(
    r"(source|target|head)\.weight|.*\.(query|key|value|into)\.weight"
)  # its columns are the width
WRITES_WIDTH = re.compile(r".*\.(out|norm)\.(weight|bias)")  # its rows are


def unsupported(c: Any) -> list[str]:
    """What of a model Marian cannot be, in words; nothing where it fits."""
    if not isinstance(c, transformer.Config):
        return [f"model.family={c.family} (expected transformer)"]
    layout, eps = getattr(c.positions, "layout", None), getattr(c.norm, "eps", 1e-5)
    found = {
        "model.prenorm=true (Marian's norms come last)": c.prenorm,
        f"model.positions.kind={c.positions.kind} (Marian's are a sinusoid)": layout is None,
        "model.positions.layout=whisper (Marian's is not stretched)": layout == "whisper",
        f"model.attention.kind={c.attention.kind} (Marian's is dense)": not isinstance(c.attention, slots.Dense),
        "model.attention.scaled=false (Marian's are scaled)": not getattr(c.attention, "scaled", True),
        f"model.feed.kind={c.feed.kind} (Marian's is plain)": not isinstance(c.feed, slots.Feed),
        f"model.norm.kind={c.norm.kind} (Marian's is layer)": not isinstance(c.norm, slots.LayerNorm),
        f"model.norm.eps={eps:g} (Marian's is 1e-05)": eps != 1e-5 and isinstance(c.norm, slots.LayerNorm),
    }
    return [words for words, misfit in found.items() if misfit]


def write(system: Any, draft: Path, precision: str) -> None:
    """Everything of the folder but its README."""
    run: Run = system.run
    twin, c = as_marian(system.model, run.model)
    longest = max_positions(run)
    draft.mkdir()
    write_json(draft / "config.json", config(c, system.source, longest) | decode_entry(run))
    write_json(draft / "generation_config.json", generation_config(run, system.target, longest))
    (draft / "model.safetensors").write_bytes(save(tensors(twin, c), {"format": "pt"}))
    write_tokenizer_files(system, draft, longest)


def as_marian(model: Any, c: transformer.Config) -> tuple[transformer.Model, transformer.Config]:
    """The same function as a model of exactly Marian's form."""
    state: dict[str, Tensor] = dict(model.state_dict())
    if c.positions.layout == "interleaved":  # type: ignore[union-attr]
        state = to_half_layout(state, c.width)
    state.setdefault("head.bias", torch.zeros(len(state["head.weight"])))
    c = c.model_copy(update={"positions": slots.Sinusoid(layout="halves"), "biased": True})
    twin = transformer.Model(c)
    twin.load_state_dict(state)
    return twin.eval(), c


def to_half_layout(state: Mapping[str, Tensor], width: int) -> dict[str, Tensor]:
    """Every tensor with the width's even places first, then its odd ones: what was interleaved lies in halves.

    Nothing but the order of the width changes, and every map that reads or writes it changes along.
    """
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])

    def moved(name: str, tensor: Tensor) -> Tensor:
        if READS_WIDTH.fullmatch(name):
            return tensor[:, order]
        return tensor[order] if WRITES_WIDTH.fullmatch(name) else tensor

    return {name: moved(name, tensor) for name, tensor in state.items()}


def max_positions(run: Run) -> int:
    """How many places a model is given where it needs a number: what the data allow, and outputs for them."""
    return max(1024, 2 * run.data.max_tokens + 32)


def config(c: transformer.Config, tokenizer: TrainedTokenizer, longest: int) -> dict[str, Any]:
    acts = {ours: theirs for theirs, ours in reversed(transformer.ACTIVATIONS.items())}
    sides = {f"{side}_{key}": value for side in ("encoder", "decoder")
             for key, value in (("attention_heads", c.heads), ("ffn_dim", c.inner), ("layerdrop", 0.0))}  # fmt: skip
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "d_model": c.width,
        "encoder_layers": c.layers,
        "decoder_layers": c.decoder_layers or c.layers,
        **sides,
        "vocab_size": c.vocab,
        "decoder_vocab_size": c.target_vocab or c.vocab,
        "share_encoder_decoder_embeddings": not c.target_vocab,
        "tie_word_embeddings": c.tied,
        "scale_embedding": c.scaled,
        "activation_function": acts[c.feed.act],
        "dropout": c.dropout,
        "attention_dropout": c.attention.dropout,
        "activation_dropout": c.feed.dropout,
        "max_position_embeddings": longest,
        "pad_token_id": tokenizer.pad,
        "bos_token_id": tokenizer.start,
        "eos_token_id": tokenizer.end,
        "decoder_start_token_id": tokenizer.start,
        "forced_eos_token_id": None,
        "dtype": "float32",
    }


def decode_entry(run: Run) -> dict[str, Any]:
    """What our reader goes by and others pass over: the run's way of decoding, which Marian's words say only nearly."""
    return {"regard": {"decode": run.decode.model_dump(mode="json", include=SAVED_DECODE)}}


def generation_config(run: Run, tokenizer: TrainedTokenizer, longest: int) -> dict[str, Any]:
    numbers = {"pad_token_id": tokenizer.pad, "bos_token_id": tokenizer.start, "eos_token_id": tokenizer.end}
    never = {"decoder_start_token_id": tokenizer.start, "suppress_tokens": [tokenizer.pad, tokenizer.start]}
    return generation_settings(run.decode, longest) | numbers | never


def tensors(twin: transformer.Model, c: transformer.Config) -> dict[str, Tensor]:
    """The weights under the names that `save_pretrained` would write."""
    found = export_weights(twin, transformer.marian(c))
    if c.tied:
        del found["lm_head.weight"]
    elif not c.target_vocab:  # transformers then ties nothing at all
        for side in ("encoder", "decoder"):
            found[f"model.{side}.embed_tokens.weight"] = found["model.shared.weight"]
    return {name: tensor.detach().clone().contiguous() for name, tensor in found.items()}


def write_tokenizers(system: Any, draft: Path) -> dict[str, TrainedTokenizer]:
    """One file, or one for each side; and whose they are."""
    sides = {TOKENIZER_FILE: system.source} | (
        {} if system.target is system.source else {TARGET_TOKENIZER_FILE: system.target}
    )
    for name, text in sides.items():
        (draft / name).parent.mkdir(exist_ok=True)
        (draft / name).write_text(portable_tokenizer(text).to_str(pretty=True) + "\n", encoding="utf-8")
    return sides


def write_tokenizer_files(system: Any, draft: Path, longest: int) -> None:
    """The tokenizers, and beside each what `transformers` needs to know of it."""
    for name, text in write_tokenizers(system, draft).items():
        write_json((draft / name).parent / "tokenizer_config.json", tokenizer_config(text, longest))


def tokenizer_config(text: TrainedTokenizer, longest: int) -> dict[str, Any]:
    """How `transformers` is to use it. No text is control, whatever it says; `<unk>` is not named, for then it would be
    left out of decoded texts."""
    pad, start, end, _ = SPECIALS
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": pad,
        "bos_token": start if text.start != text.pad else None,  # a borrowed one may have none
        "eos_token": end,
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": longest,
    }


def portable_tokenizer(text: TrainedTokenizer, ended: bool = True) -> Backend:
    """The tokenizer, with END after every text if asked for, that decodes as ours does but without our help."""
    whole = json.loads(text.backend.to_str())
    whole["added_tokens"] = [token for token in whole["added_tokens"] if token["id"] != text.unk]
    backend = Backend.from_str(json.dumps(whole))
    end = SPECIALS[END]
    if ended:
        backend.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, text.end)]
        )
    if text.symbols and byte_values(backend):
        backend.decoder = decode_around_symbols(backend.decoder, list(text.symbols.values()))
    return backend


def decode_around_symbols(decoder: Any, symbols: list[str]) -> Any:
    """Decode what stands between symbols as a text of its own, as our tokenizers do."""
    table = byte_letters()
    spelt = {symbol: "".join(table[byte] for byte in symbol.encode()) for symbol in symbols if not symbol.isascii()}
    before = [decoders.Replace(symbol, instead) for symbol, instead in spelt.items()]  # read as bytes, it comes back
    stripped = isinstance(decoder, decoders.Sequence)  # words: the space before the first is not of the text
    after = [decoders.Replace(f"{symbol} ", symbol) for symbol in symbols] if stripped else []
    return decoders.Sequence([*before, decoder, *after])
