"""Small random folders of causal language models, and greedy search over a model."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn

from regard.decode import SearchSettings, run_search

END = "<|endoftext|>"
TEXTS = [
    "The cat sees the dog.", "the", " the  old\tbird\n\n", "unseen wörds, 日本 👩‍👩‍👧, and 3.14 - don't!", "", "x" * 40,
    f"{END} is text, and so are <s> and </s>",
]  # fmt: skip
SENTENCES = [
    "the old cat sees the small dog under the tree",
    "a bird never likes the red house",
    "today the dog finds it",
]


def byte_level(vocab: int, *control: str) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=list(control), initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(SENTENCES * 9, trainer)
    return backend


def byte_fallback(kind: str = "bpe", *control: str) -> Tokenizer:
    """A vocabulary as those of Llama 2 and Mistral: words, letters, and bytes for the characters that it lacks."""
    names = [
        *control,
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"abcdehinorstuw.",
        "▁th",
        "▁the",
        "re",
    ]
    if kind == "unigram":
        backend = Tokenizer(models.Unigram([(name, -1.0) for name in names], len(control), byte_fallback=True))
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    else:
        vocab = {name: number for number, name in enumerate([*names[:-2], "▁t", *names[-2:]])}
        merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("r", "e")]
        backend = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        backend.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    backend.add_special_tokens(list(control))
    return backend


def loud(model: nn.Module, spread: float = 20.0) -> nn.Module:
    """Enlarge the initial weights, so that attention is not uniform and texts differ."""
    torch.manual_seed(0)
    tables = {part.weight for part in model.modules() if isinstance(part, nn.Embedding)}
    for each in model.parameters():
        larger = each.data * (5 if each in tables else spread)
        each.data = larger if each.dim() > 1 else each.data + 0.3 * torch.randn_like(each)
    return model.eval()


def gpt2(path: Path, **changes: Any) -> tuple[Path, Any]:
    """A folder with tokenizer.json, and the transformers model saved in it."""
    path.mkdir(parents=True)
    backend = byte_level(300, END)
    backend.save(str(path / "tokenizer.json"))
    control = {"bos_token": END, "eos_token": END, "unk_token": END}
    (path / "tokenizer_config.json").write_text(json.dumps(control | {"tokenizer_class": "GPT2Tokenizer"}))
    shape = {"n_positions": 64, "n_embd": 36, "n_layer": 3, "n_head": 3, "bos_token_id": 0, "eos_token_id": 0}
    model = loud(hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=backend.get_vocab_size(), **shape | changes)))
    model.save_pretrained(path)
    return path, model


LLAMA = {"hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 50}
KINDS = {
    "llama": (hf.LlamaConfig, hf.LlamaForCausalLM),
    "mistral": (hf.MistralConfig, hf.MistralForCausalLM),
    "qwen2": (hf.Qwen2Config, hf.Qwen2ForCausalLM),
}


def llama(
    path: Path, kind: str = "llama", adds_start: bool = True, fallback: bool = False, **changes: Any
) -> tuple[Path, Any]:
    path.mkdir(parents=True)
    backend = byte_fallback("bpe", "<s>", "</s>") if fallback else byte_level(300, "<s>", "</s>")
    if adds_start:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    backend.save(str(path / "tokenizer.json"))
    control = {
        "bos_token": {"__type": "AddedToken", "content": "<s>", "special": True},
        "eos_token": "</s>",
        "pad_token": None,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(control | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    config, model = KINDS[kind]
    numbers = {"vocab_size": backend.get_vocab_size() + 3, "bos_token_id": 0, "eos_token_id": 1}
    made = loud(model(config(**LLAMA | numbers | changes)))
    made.save_pretrained(path)
    return path, made


def ragged(rows: list[list[int]], left: bool = False) -> tuple[Tensor, Tensor]:
    """(tokens, valid)"""
    most = max(map(len, rows))
    pads = [[0] * (most - len(row)) for row in rows]
    tokens = [pad + row if left else row + pad for row, pad in zip(rows, pads, strict=True)]
    real = [[False] * len(pad) + [True] * len(row) for row, pad in zip(rows, pads, strict=True)]
    real = real if left else [row[::-1] for row in real]
    return torch.tensor(tokens), torch.tensor(real)


def greedy(model: Any, rows: list[list[int]], steps: int, end: int, left: bool = False) -> list[list[int]]:
    tokens, real = ragged(rows, left)
    limits = torch.full((len(rows),), steps)
    found = run_search(
        model, model.start(None, len(rows)), tokens, limits, SearchSettings(end, beam=1, early_stopping="first"), real
    )
    return [best[0].tokens for best in found]


def generated(model: Any, rows: list[list[int]], steps: int, end: int) -> list[list[int]]:
    """The same by transformers, padded on the left as its documentation says."""
    tokens, real = ragged(rows, left=True)
    made = model.generate(
        tokens, attention_mask=real.long(), do_sample=False, max_new_tokens=steps, pad_token_id=end, eos_token_id=end
    )
    new = made[:, tokens.size(1) :].tolist()
    return [row[: row.index(end)] if end in row else row for row in new]
