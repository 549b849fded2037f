"""T5 equals transformers' T5 in logits, tokens and generation, imported and exported."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
import transformers as hf
from helpers import marian, small
from helpers.inputs import inputs
from helpers.runs import tiny_folder
from helpers.t5 import EXTRA, make_folder
from prototypes.checks import close, ragged

import regard
from regard.errors import UserError
from regard.families import t5
from regard.formats.huggingface.t5 import FORMAT
from regard.formats.huggingface.vocabularies import load_t5_unigram
from regard.formats.parity import best_hypotheses
from regard.parts import slots
from regard.processors.text.tokenizers import load_tokenizer as load_tokenizer

FIRST = {"feed_forward_proj": "relu", "tie_word_embeddings": True}
LATER = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def folder(path: Path, **config: Any) -> Path:
    """A small T5 of the store: a sentencepiece model of a few sentences, weights that learned to copy a little."""
    return tiny_folder(make_folder, path, **config)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    here = tmp_path_factory.mktemp("t5")
    return {"first": folder(here / "first", **FIRST), "later": folder(here / "later", **LATER)}


TEXTS = [*marian.sentences(6, 5), "the tree", "Über the ﬁne ② 猫!", "a"]


def their_model(path: Path) -> Any:
    return hf.T5ForConditionalGeneration.from_pretrained(path).eval()


@pytest.mark.parametrize("name", ["first", "later"])
@torch.no_grad()
def test_logits_equal_transformers(folders: dict[str, Path], name: str) -> None:
    ours, theirs = regard.load(folders[name]), their_model(folders[name])
    assert (theirs.lm_head.weight is theirs.shared.weight) == (name == "first")
    source, target, valid = torch.randint(60, (3, 41)), torch.randint(60, (3, 33)), ragged([41, 12, 23])
    want = theirs(input_ids=source, attention_mask=valid.long(), decoder_input_ids=target).logits
    close(ours.model(inputs(source, valid), inputs(target)), want)
    assert ours.target.start == ours.target.pad == 0


@pytest.mark.parametrize("name", ["first", "later"])
def test_generation_equals_transformers(folders: dict[str, Path], name: str) -> None:
    ours, theirs, tokenizer = regard.load(folders[name]), their_model(folders[name]), tokens_of(folders[name])
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    for beams, how in (
        (1, {"kind": "greedy"}),
        (4, {"kind": "beam", "beam": 4, "early_stopping": "heuristic"}),
        (3, {"kind": "beam", "beam": 3, "early_stopping": "first", "length_penalty": 0.4}),
    ):
        words = {
            "early_stopping": how.get("early_stopping") == "first",
            "length_penalty": how.get("length_penalty", 1.0),
        }
        generated = theirs.generate(
            **batch, num_beams=beams, max_new_tokens=17, do_sample=False, **(words if beams > 1 else {})
        ).tolist()
        hypotheses = best_hypotheses(ours, TEXTS, {"max_tokens": 17, **how})
        assert [best.tokens for best in hypotheses] == [
            [each for each in row if each not in (0, 1)] for row in generated
        ]
        texts, wanted = ours.predict(TEXTS, max_tokens=17, **how), tokenizer.batch_decode(generated)
        assert texts == [text.removeprefix("<pad>").replace("<pad>", "").replace("</s>", "").strip() for text in wanted]
        assert len(set(texts)) > 4


def tokens_of(path: Path) -> Any:
    return hf.AutoTokenizer.from_pretrained(path)


# --- its tokenizer ---------------------------------------------------------------------------------------------------

AWKWARD = [
    "the small cat", "  the  small\tcat zzz 猫猫 x ", "Über ﬁne ①②! naïve e\u0301", "", "   ", "a\u00adb\u200bc\u3000d",
    "THE CAT. the.cat", "the <extra_id_0> cat<extra_id_3>s", "<extra_id_99> <extra_id_6>",
]  # fmt: skip


def test_tokens_equal_transformers_and_sentencepiece(folders: dict[str, Path], tmp_path: Path) -> None:
    path, theirs = folders["first"], tokens_of(folders["first"])
    theirs.save_pretrained(tmp_path / "stored")
    assert (tmp_path / "stored" / "tokenizer.json").is_file() and not (path / "tokenizer.json").exists()
    cutter = sentencepiece.SentencePieceProcessor(model_file=str(path / "spiece.model"))
    wanted = theirs(AWKWARD, add_special_tokens=False).input_ids
    for folder in (path, tmp_path / "stored"):
        ours = load_t5_unigram(folder)
        assert ours.encode(AWKWARD) == wanted
        assert ours.encode(AWKWARD[:7]) == cutter.encode(AWKWARD[:7])
        assert (ours.pad, ours.start, ours.end, ours.unk, ours.mask) == (0, 0, 1, 2, None)
        top = cutter.get_piece_size() + EXTRA
        assert ours.size == top and ours.sentinels == list(range(top - 1, top - 1 - EXTRA, -1))
        assert ours.decode([[*wanted[0], 1, 0]]) == ["the small cat"]
        assert ours.decode([wanted[7]]) == [theirs.decode(wanted[7])]
        control = ours.encode(["the</s>", "<pad> </s><unk>", "<s>"])
        assert not {0, 1} & {each for row in control for each in row}
        ours.save(tmp_path / "ours.json")  # as in a run folder
        again = load_tokenizer(tmp_path / "ours.json")
        assert again.encode(AWKWARD) == wanted and again.start == 0 and again.sentinels == ours.sentinels
        assert again.encode(["the</s>"]) == control[:1]


def test_scaled_states_without_a_tied_head_and_vice_versa(folders: dict[str, Path], tmp_path: Path) -> None:
    """transformers 5 ties the head of T5 1.1 unless config.json says otherwise; the first T5 may have its own head."""
    source, target = torch.randint(60, (2, 9)), torch.randint(60, (2, 7))
    for name, scaled in (("first", False), ("first", True), ("later", True), ("later", False)):
        path = tmp_path / f"{name}-{scaled}"
        shutil.copytree(folders[name], path)
        config = json.loads((path / "config.json").read_text()) | {"scale_decoder_outputs": scaled}
        (path / "config.json").write_text(json.dumps(config))
        with torch.no_grad():
            want = their_model(path)(input_ids=source, decoder_input_ids=target).logits
            ours = regard.load(path)
            close(ours.model(inputs(source), inputs(target)), want)
        assert ours.run.model.tied == (name == "first" and scaled)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"is_encoder_decoder": False}, "is_encoder_decoder is false; regard reads T5 models with encoder and decoder"),
        ({"feed_forward_proj": "gated-mish"}, "feed_forward_proj is 'gated-mish'; expected one of relu"),
        ({"feed_forward_proj": "odd-relu"}, "feed_forward_proj is 'odd-relu'"),
        ({"d_kv": 11}, "has shape"),
        ({"num_decoder_layers": 1}, "have no place in the model"),
        ({"vocab_size": 5}, "has shape"),
        ({"eos_token_id": 5}, "eos_token_id is 5 and its tokenizer has 1; they must agree"),
        ({"relative_attention_num_buckets": 3}, "relative_attention_num_buckets is 3; expected at least 4"),
        ({"num_beams": "x"}, "num_beams is 'x'; expected a whole number"),
        ({"max_length": True}, "max_length is True; expected a whole number"),
        ({"length_penalty": []}, r"length_penalty is \[\]; expected a number"),
        ({"bad_words_ids": [3]}, r"bad_words_ids is \[3\]; expected a list of lists of numbers"),
        ({"suppress_tokens": ["a"]}, r"suppress_tokens is \['a'\]; expected a list of numbers"),
    ],
)
def test_unsupported_configs_are_refused(
    folders: dict[str, Path], tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    path = tmp_path / "x"
    shutil.copytree(folders["first"], path)
    (path / "generation_config.json").unlink()
    (path / "config.json").write_text(json.dumps(json.loads((path / "config.json").read_text()) | changes))
    with pytest.raises(UserError, match=words):
        regard.load(path)


def test_unsupported_tokenizers_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "x"
    shutil.copytree(folders["first"], path)
    whole = (path / "spiece.model").read_bytes()
    for data in (whole[: len(whole) // 2], b"not one", b"", whole[:1]):
        (path / "spiece.model").write_bytes(data)
        with pytest.raises(UserError, match="spiece.model is no"):
            regard.load(path)
    (path / "spiece.model").unlink()
    with pytest.raises(UserError, match="has neither tokenizer.json nor spiece.model"):
        regard.load(path)
    shutil.copy(folders["first"] / "spiece.model", path)
    (path / "tokenizer_config.json").write_text(json.dumps({"extra_ids": 200}))
    with pytest.raises(UserError, match="tokens and its model"):
        regard.load(path)


# --- export ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"model__tied": True, "model__feed__kind": "plain", "model__feed__act": "relu", "tokenizer__symbols": "<x>"},
        {"model__layers": 2, "model__decoder_layers": 1, "tokenizer__kind": "word", "model__norm__eps": 0.2},
    ],
    ids=["first", "later"],
)
def test_exported_run_equals_the_run(tmp_path: Path, settings: dict[str, Any]) -> None:
    run = small.translator(30, 400, model__family="t5", model__head_width=12, train__eval_every=1000, **settings)
    report = regard.convert(run, to="huggingface", out=tmp_path / "out")
    assert "transformers" in report["checked"] and "outputs apart by" in report["checked"]
    ours, back = regard.load(run), regard.load(tmp_path / "out")
    texts = [*marian.sentences(5, 9), "unseen 猫 </s>"]
    assert back.predict(texts) == ours.predict(texts)
    assert back.target.start == ours.target.start == 1
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (
        config["tie_word_embeddings"] == ours.run.model.tied and config["layer_norm_epsilon"] == ours.run.model.norm.eps
    )
    assert "AutoModelForSeq2SeqLM" in (tmp_path / "out" / "README.md").read_text()


def test_unsupported_settings_are_named() -> None:
    c = t5.Config(
        vocab=9, decoder_layers=9, target_vocab=9, positions=slots.Sinusoid(), attention=slots.Additive(),
        norm=slots.LayerNorm(), feed=slots.Gated(act="gelu"),
    )  # fmt: skip
    words = " ".join(FORMAT.unsupported(c))
    for part in ("positions.kind=sinusoid", "attention.kind=additive", "norm.kind=layer", "feed.act=gelu", "tokenizer.joint=true",
                 "model.decoder_layers=9 (expected at most model.layers=8"):  # fmt: skip
        assert part in words
    assert FORMAT.unsupported(t5.Config(attention=slots.Dense())) == [
        "model.attention.scaled=true (expected false: T5 does not scale its scores)"
    ]
    assert FORMAT.unsupported(t5.Config()) == []
