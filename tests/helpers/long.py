"""Small Longformer and BigBird folders: vocabularies of a few tokens, large random weights."""

import json
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers as hf
from prototypes.checks import loud
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

LINES = ["the cat sat on the mat", "unaffable cats run", "Hello world! (1, 2)", "café naïve über 你好", "a  b\tc"] * 3
CONTROL = ["<s>", "<pad>", "</s>", "<unk>"]  # as in RoBERTa
VOCAB = 300
SHAPE = dict(
    vocab_size=VOCAB, hidden_size=36, num_hidden_layers=3, num_attention_heads=3, intermediate_size=50,
    max_position_embeddings=140,
)  # fmt: skip
AWKWARD = [
    "Hello the cat sat.", " unaffable  cats", "Café naïve cafe\u0301", "你好you", "  a\tb\u00a0c\n", "", "   ", "🙂 é\u0327",
    "<s> the </s><mask> <pad> <unk>", "ab" * 40,
]  # fmt: skip


def longformer(
    path: Path, kind: str = "LongformerModel", tokenizer: dict[str, Any] | None = None, **config: Any
) -> Path:
    """`kind` is the class; `tokenizer` is the content of tokenizer_config.json, None: no file."""
    torch.manual_seed(0)
    defaults = {"attention_window": [8, 4, 16], "pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    model = getattr(hf, kind)(hf.LongformerConfig(**SHAPE | defaults | config))
    loud(model, spread=3.0).save_pretrained(path)
    write_byte_bpe(path, tokenizer)
    return path


def roberta(path: Path, kind: str = "RobertaModel", tokenizer: dict[str, Any] | None = None, **config: Any) -> Path:
    torch.manual_seed(0)
    defaults = {"pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "max_position_embeddings": 43}
    model = getattr(hf, kind)(hf.RobertaConfig(**SHAPE | defaults | config))
    loud(model, spread=3.0).save_pretrained(path)
    write_byte_bpe(path, tokenizer)
    return path


def write_byte_bpe(path: Path, tokenizer: dict[str, Any] | None = None) -> None:
    """Write RoBERTa's vocab.json and merges.txt."""
    path.mkdir(exist_ok=True)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - 1, special_tokens=CONTROL, initial_alphabet=letters)
    backend.train_from_iterator(LINES, trainer)
    backend.model.save(str(path))
    vocab = json.loads((path / "vocab.json").read_text())
    (path / "vocab.json").write_text(json.dumps(vocab | {"<mask>": len(vocab)}))
    if tokenizer is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(tokenizer))


def bigbird(path: Path, kind: str = "BigBirdModel", tokenizer: dict[str, Any] | None = None, **config: Any) -> Path:
    torch.manual_seed(0)
    defaults = {"block_size": 4, "num_random_blocks": 2, "vocab_size": 120}
    model = getattr(hf, kind)(hf.BigBirdConfig(**SHAPE | defaults | config))
    loud(model, spread=3.0).save_pretrained(path)
    write_sentencepiece(path, tokenizer)
    return path


def write_sentencepiece(path: Path, tokenizer: dict[str, Any] | None = None) -> None:
    """Write BigBird's spiece.model."""
    path.mkdir(exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_prefix=str(path / "spiece"), vocab_size=70, hard_vocab_limit=False,
        pad_id=0, eos_id=1, bos_id=2, unk_id=3, user_defined_symbols=["[CLS]", "[SEP]", "[MASK]"], minloglevel=2,
    )  # fmt: skip
    (path / "spiece.vocab").unlink()
    if tokenizer is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
