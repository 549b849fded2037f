"""Small BERT folders: a vocabulary of a few wordpieces, large random weights."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from prototypes.checks import loud

CONTROL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [
    "the",
    "cat",
    "sat",
    "un",
    "##aff",
    "##able",
    "hello",
    "world",
    "naive",
    "##ly",
    "cafe",
    "café",
    "é",
    "##é",
    "e",
    "##e",
    "A",
    "##B",
    "H",
    "##ello",
    "Hello",
    "a",
    "##b",
    "##c",
    "b",
    "c",
    "ab",
    "you",
    "你",
    "好",
    "!",
    ",",
    ".",
    "'",
    "(",
    ")",
    "-",
    "[",
    "]",
    "<",
    ">",
    "/",
    "s",
    "##s",
    "1",
    "##2",
    "$",
    "#",
    "##",
    "##ing",
    "sit",
    "run",
    "##n",
    "##er",
    "İ",
    "i",
    "ß",
    "ss",
    "ʼn",
    "mask",
    "MASK",
    "sep",
    "ﬁ",
    "f",
    "##i",
    "١",
    "्",
]
VOCAB = list(dict.fromkeys(CONTROL + PIECES))
SHAPE = dict(
    vocab_size=len(VOCAB), hidden_size=36, num_hidden_layers=3, num_attention_heads=3, intermediate_size=50,
    max_position_embeddings=41, type_vocab_size=3,
)  # fmt: skip


def folder(path: Path, kind: str = "BertModel", tokenizer: dict[str, Any] | None = None, **config: Any) -> Path:
    """`kind` is the class; `tokenizer` is the content of tokenizer_config.json, None: no file."""
    torch.manual_seed(0)
    model = getattr(hf, kind)(hf.BertConfig(**SHAPE | config))
    loud(model, spread=3.0).save_pretrained(path)
    write_tokenizer(path, tokenizer)
    return path


def write_tokenizer(path: Path, tokenizer: dict[str, Any] | None = None) -> None:
    path.mkdir(exist_ok=True)
    (path / "vocab.txt").write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    if tokenizer is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(tokenizer))


AWKWARD = [
    "Hello the cat sat.", "HELLO unaffable", "Café naïvely café Cafe\u0301", "你好you你", "  a\tb\u00a0c\u3000ab\n",
    "un\u00adaff\u200bable\u0000x\ufffd", "don't (sit-run)[s]<s/>", "$12 # ##ing", "İi ßss ʼn ﬁ ١ क्", "", "   ",
    "ab" * 60, "[CLS] the [SEP][MASK] [PAD] [UNK] </s> <s> <pad> <unk> <mask>", "🙂 the\u0301 é\u0327",
]  # fmt: skip
