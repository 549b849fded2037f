"""Small T5 folders of transformers."""

import json
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers as hf
from helpers import marian

EXTRA = 7


def make_folder(path: Path, taught: bool = True, **config: Any) -> None:
    path.mkdir(parents=True)
    texts = marian.sentences(300) + [text.upper() for text in marian.sentences(300, 1)] + ["Über naïve ﬁne ①!"] * 3
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(path / "spiece"), vocab_size=120, minloglevel=2,
        hard_vocab_limit=False, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
    )  # fmt: skip
    (path / "spiece.vocab").unlink()
    about = {"tokenizer_class": "T5Tokenizer", "extra_ids": EXTRA}
    (path / "tokenizer_config.json").write_text(json.dumps(about))
    tokenizer = hf.AutoTokenizer.from_pretrained(path)
    torch.manual_seed(0)
    shape = dict(
        vocab_size=len(tokenizer) + 3, d_model=36, d_kv=10, d_ff=50, num_layers=3, num_decoder_layers=2, num_heads=3,
        relative_attention_num_buckets=14, relative_attention_max_distance=19, decoder_start_token_id=0,
    ) | config  # fmt: skip
    model = hf.T5ForConditionalGeneration(hf.T5Config(**shape))
    if not shape["tie_word_embeddings"]:
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight) * 0.2)
    if taught:
        marian.teach(model, tokenizer, 60)
    model.save_pretrained(path)
