"""T5 is transformers' T5: its logits, its tokens, its generation; and a run of ours becomes such a folder."""

import json
import shutil
from pathlib import Path
from typing import Any

import marian
import pytest
import sentencepiece
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from seams.checks import close, ragged

import regard
from regard.errors import Mistake
from regard.interop.vocabularies import sentencepieces
from regard.parts import Mask

EXTRA = 7
FIRST = {"feed_forward_proj": "relu", "tie_word_embeddings": True}
LATER = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def folder(path: Path, **config: Any) -> Path:
    """A small T5 from nothing: sentencepieces of a few sentences, weights that learnt to copy a little."""
    path.mkdir(parents=True)
    texts = marian.sentences(300) + [text.upper() for text in marian.sentences(300, 1)] + ["Über naïve ﬁne ①!"] * 3
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(path / "spiece"), vocab_size=120, minloglevel=2,
        hard_vocab_limit=False, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
    )  # fmt: skip
    (path / "spiece.vocab").unlink()
    said = {"tokenizer_class": "T5Tokenizer", "extra_ids": EXTRA}
    (path / "tokenizer_config.json").write_text(json.dumps(said))
    tokenizer = hf.AutoTokenizer.from_pretrained(path)
    torch.manual_seed(0)
    shape = dict(
        vocab_size=len(tokenizer) + 3, d_model=36, d_kv=10, d_ff=50, num_layers=3, num_decoder_layers=2, num_heads=3,
        relative_attention_num_buckets=14, relative_attention_max_distance=19, decoder_start_token_id=0,
    ) | config  # fmt: skip
    model = hf.T5ForConditionalGeneration(hf.T5Config(**shape))
    if not shape["tie_word_embeddings"]:
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight) * 0.2)
    marian.teach(model, tokenizer, 60)
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    here = tmp_path_factory.mktemp("t5")
    return {"first": folder(here / "first", **FIRST), "later": folder(here / "later", **LATER)}


TEXTS = [*marian.sentences(6, 5), "the tree", "Über the ﬁne ② 猫!", "a"]


def their(path: Path) -> Any:
    return hf.T5ForConditionalGeneration.from_pretrained(path).eval()


@pytest.mark.parametrize("name", ["first", "later"])
@torch.no_grad()
def test_logits_are_transformers(folders: dict[str, Path], name: str) -> None:
    ours, theirs = regard.load(folders[name]), their(folders[name])
    assert (theirs.lm_head.weight is theirs.shared.weight) == (name == "first")
    source, target, real = torch.randint(60, (3, 41)), torch.randint(60, (3, 33)), ragged([41, 12, 23])
    want = theirs(input_ids=source, attention_mask=real.long(), decoder_input_ids=target).logits
    close(ours.model(source, target, Mask(keys=real)), want)
    assert ours.target.start == ours.target.pad == 0


@pytest.mark.parametrize("name", ["first", "later"])
def test_generation_is_transformers(folders: dict[str, Path], name: str) -> None:
    ours, theirs, tokenizer = regard.load(folders[name]), their(folders[name]), tokens_of(folders[name])
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert batch.input_ids[0][batch.attention_mask[0].bool()].tolist() == [
        *ours.source.encode(TEXTS)[0],
        ours.source.end,
    ]
    for beams, how in (
        (1, {"kind": "greedy"}),
        (4, {"kind": "beam", "beam": 4, "stop": "heuristic"}),
        (3, {"kind": "beam", "beam": 3, "stop": "first", "length_penalty": 0.4}),
    ):
        words = {"early_stopping": how.get("stop") == "first", "length_penalty": how.get("length_penalty", 1.0)}
        made = theirs.generate(
            **batch, num_beams=beams, max_new_tokens=17, do_sample=False, **(words if beams > 1 else {})
        )
        said = ours.predict(TEXTS, max_tokens=17, **how)
        ids = [best[0].tokens for best in ours.search(TEXTS, ours._how({"max_tokens": 17, **how}))]
        assert ids == [[each for each in row.tolist() if each not in (0, 1)] for row in made]
        assert len(set(said)) > 4
        assert said == tokenizer.batch_decode(
            [[each for each in row if each != 2] for row in made.tolist()], True
        ) or any("<unk>" in text for text in said)


def tokens_of(path: Path) -> Any:
    return hf.AutoTokenizer.from_pretrained(path)
