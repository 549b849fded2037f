"""Small BERT folders: a vocabulary of a few wordpieces, large random weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from prototypes.checks import loud

CONTROL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDPIECES = [
    "the", "cat", "sat", "un", "##aff", "##able", "hello", "world", "naive", "##ly", "cafe", "café", "é", "##é",
    "e", "##e", "A", "##B", "H", "##ello", "Hello", "a", "##b", "##c", "b", "c", "ab", "you", "你", "好", "!", ",",
    ".", "'", "(", ")", "-", "[", "]", "<", ">", "/", "s", "##s", "1", "##2", "$", "#", "##", "##ing", "sit", "run",
    "##n", "##er", "İ", "i", "ß", "ss", "ʼn", "mask", "MASK", "sep", "ﬁ", "f", "##i", "١", "्",
]  # fmt: skip
VOCAB = list(dict.fromkeys(CONTROL + WORDPIECES))
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


# --- sentence-transformers -------------------------------------------------------------------------------------------


def sentence_folder(path: Path, nested: bool = False, normalize: bool = False, **pooling: Any) -> Path:
    """A sentence-transformers folder; `nested` puts the BERT into a folder of its own."""
    home = path / "0_Transformer" if nested else path
    home.parent.mkdir(exist_ok=True)
    folder(home, tokenizer={"model_max_length": 33})
    name = "sentence_transformers.models."
    listed = [("Transformer", home.name if nested else ""), ("Pooling", "1_Pooling")]
    listed += [("Normalize", "2_Normalize")] if normalize else []
    modules = [{"idx": i, "name": str(i), "path": where, "type": name + kind} for i, (kind, where) in enumerate(listed)]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": False}
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 36, **modes} | pooling))
    (home / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12, "do_lower_case": False}))
    return path


def sentence_vectors(path: Path, texts: list[str], longest: int, how: str, normalize: bool) -> Any:
    """Expected vectors: each text alone in transformers, pooled with numpy."""
    text, model = hf.AutoTokenizer.from_pretrained(path), hf.BertModel.from_pretrained(path).eval()
    rows = []
    for each in texts:
        batch = text(each, return_tensors="pt", truncation=True, max_length=longest, split_special_tokens=True)
        with torch.no_grad():
            states = model(**batch).last_hidden_state[0].numpy()
        vector = {"mean": states.mean(0), "first": states[0], "max": states.max(0)}[how]
        rows.append(vector / np.linalg.norm(vector) if normalize else vector)
    return np.stack(rows)
