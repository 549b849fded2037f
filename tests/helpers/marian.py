"""A small Marian folder: sentencepiece models of a few synthetic sentences, and briefly trained weights."""

import json
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers as hf
from helpers.runs import tiny_folder

WORDS = [
    "the",
    "small",
    "old",
    "red",
    "cat",
    "dog",
    "bird",
    "house",
    "tree",
    "sees",
    "likes",
    "finds",
    "under",
    "over",
    "behind",
    "and",
    "but",
    "quickly",
    "never",
    "today",
]


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = torch.Generator().manual_seed(seed)
    rows = [torch.randint(len(WORDS), (3 + i % 9,), generator=draw).tolist() for i in range(count)]
    return [" ".join(WORDS[i] for i in row) + "." for row in rows]


def cutter(path: Path, texts: list[str], vocab: int) -> list[str]:
    """Train a sentencepiece model at `path`; return its pieces."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(path.with_suffix("")), vocab_size=vocab, minloglevel=2,
        hard_vocab_limit=False,
    )  # fmt: skip
    path.with_suffix(".model").rename(path)
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [model.id_to_piece(i) for i in range(model.get_piece_size())]


def teach(model: torch.nn.Module, tokenizer: Any, steps: int = 100) -> None:
    """Train briefly to copy in capitals, so that texts differ and end; random weights ignore their input."""
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    texts = sentences(400, seed=2)
    for step in range(steps):
        some = texts[step * 16 % 384 :][:16]
        batch = tokenizer(some, text_target=[text.upper() for text in some], padding=True, return_tensors="pt")
        batch["labels"] = batch.labels.masked_fill(batch.labels == model.config.pad_token_id, -100)
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def folder(path: Path, separate: bool = False, taught: bool = True, **config: Any) -> Path:
    """A folder of Marian, of the store; `taught` by a short training."""
    return tiny_folder(make_folder, path, separate=separate, taught=taught, **config)


def make_folder(path: Path, separate: bool, taught: bool, **config: Any) -> None:
    path.mkdir(parents=True)
    source = cutter(path / "source.spm", sentences(300), 60)
    target = cutter(path / "target.spm", [text.upper() for text in sentences(300, 1)], 50)
    own = [
        piece
        for piece in dict.fromkeys(source if separate else source + target)
        if piece not in ("<s>", "</s>", "<unk>")
    ]
    vocab = {piece: i for i, piece in enumerate(["</s>", "<unk>", *own, ">>up<<", "<pad>"])}
    (path / "vocab.json").write_text(json.dumps(vocab))
    sizes = {"vocab_size": len(vocab), "decoder_vocab_size": len(vocab)}
    if separate:
        own = [piece for piece in target if piece not in ("<s>", "</s>", "<unk>")]
        own += [f"filler{i}" for i in range(len(vocab) - len(own) - 3)]  # pad has one number on both sides
        target_vocab = {piece: i for i, piece in enumerate(["</s>", "<unk>", *own, "<pad>"])}
        (path / "target_vocab.json").write_text(json.dumps(target_vocab))
        sizes["decoder_vocab_size"] = len(target_vocab)
    settings = {
        "separate_vocabs": separate,
        "tokenizer_class": "MarianTokenizer",
        "source_lang": "aa",
        "target_lang": "bb",
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    pad = len(vocab) - 1
    shape = dict(
        d_model=36, encoder_layers=2, decoder_layers=3, encoder_attention_heads=3, decoder_attention_heads=3,
        encoder_ffn_dim=50, decoder_ffn_dim=50, activation_function="swish", scale_embedding=True, max_position_embeddings=64,
    ) | config  # fmt: skip
    torch.manual_seed(0)
    model = hf.MarianMTModel(hf.MarianConfig(
        **sizes, **shape, pad_token_id=pad, eos_token_id=0, decoder_start_token_id=pad, forced_eos_token_id=0,
        share_encoder_decoder_embeddings=not separate, tie_word_embeddings=True,
    )).eval()  # fmt: skip
    if taught:
        teach(model, hf.MarianTokenizer.from_pretrained(path))
    model.final_logits_bias.data.normal_()
    model.generation_config = hf.GenerationConfig(
        num_beams=4, max_length=24, bad_words_ids=[[pad]], forced_eos_token_id=0, eos_token_id=0, pad_token_id=pad,
        decoder_start_token_id=pad, renormalize_logits=True,
    )  # fmt: skip
    model.save_pretrained(path)
