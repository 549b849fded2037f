"""Runs of the family gpt as GPT-2 and Llama folders: regard and transformers give the outputs of the run."""

import json
from pathlib import Path

import pytest
import torch
import transformers as hf
from helpers import causal, marian
from helpers.inputs import inputs
from helpers.readme import output_of_example
from helpers.runs import tiny_run
from safetensors.torch import load_file

import regard
from regard.cli import main
from regard.config.strategies import Beam
from regard.errors import UserError
from regard.formats.huggingface import causal as causal_files
from regard.formats.huggingface import tokenizer_export
from regard.formats.huggingface.folder import format_of_config
from regard.formats.huggingface.format import HuggingFaceFormat

TEXTS = [*marian.sentences(5, seed=7), *(text for text in causal.TEXTS if text)]
SMALL = {
    "model.family": "gpt", "model.size": "tiny", "model.width": 48, "model.heads": 4, "model.layers": 2, "model.inner": 64,
    "tokenizer.vocab": 300, "data.document": "line", "data.max_tokens": 24, "train.steps": 40,
    "train.tokens": 600, "train.lr": 4e-3, "train.warmup": 10, "train.save_every": 1000, "train.eval_every": 40,
    "train.tensorboard": False, "device": "cpu", "decode.kind": "greedy", "decode.max_tokens": 10,
}  # fmt: skip


def trained(**settings) -> Path:
    texts = {name: marian.sentences(count, len(name)) for name, count in (("train", 300), ("valid", 20))}
    files = {f"{name}.txt": "\n".join(lines) + "\n" for name, lines in texts.items()}
    data = {"data.train": "{files}/train.txt", "data.valid": "{files}/valid.txt", "data.cache": "{files}/cache"}
    places = {} if "model__family" in settings or "model__size" in settings else {"model.positions.tokens": 90}
    own = places | {key.replace("__", "."): value for key, value in settings.items()}
    return tiny_run("language", files, **{**SMALL, **data, **own})


@pytest.fixture(scope="module")
def run() -> Path:
    return trained()


def same(run: Path, out: Path) -> tuple[object, object]:
    """The run, the folder by our reader and by transformers: tokens, logits, texts, however they are asked."""
    ours, again = regard.load(run, device="cpu"), regard.load(out, device="cpu")
    texts = TEXTS[:5] if ours.run.tokenizer.kind == "char" else TEXTS  # a prompt may have no character that is unknown
    assert again.tokenizer.encode(TEXTS) == ours.tokenizer.encode(TEXTS)
    assert again.tokenizer.decode(ours.tokenizer.encode(TEXTS)) == ours.tokenizer.decode(ours.tokenizer.encode(TEXTS))
    for how in ({}, {"kind": "beam", "beam": 3}, {"kind": "sample", "top_k": 9, "seed": 4}):
        assert again.predict(texts, **how) == ours.predict(texts, **how)
    assert again.score(texts) == pytest.approx(ours.score(texts), abs=1e-3)
    theirs, tokenizer = hf.AutoModelForCausalLM.from_pretrained(out).eval(), hf.AutoTokenizer.from_pretrained(out)
    rows = [ids[:20] for ids in tokenizer(TEXTS).input_ids]
    assert rows == [ids[:20] for ids in ours.tokenizer.encode(TEXTS)]
    assert tokenizer.batch_decode(tokenizer(TEXTS).input_ids) == ours.tokenizer.decode(ours.tokenizer.encode(TEXTS))
    tokens, real = causal.ragged(rows)
    with torch.no_grad():
        wanted = ours.model(inputs(tokens, real))[real]
        assert (theirs(tokens, attention_mask=real.long()).logits[real] - wanted).abs().max() <= 1e-4
    return ours, theirs


def test_gpt2_folder(run, tmp_path, capsys):
    out = tmp_path / "deep" / "gpt2"
    capsys.readouterr()
    code = main(
        ["convert", str(run), "--to", "huggingface", "--out", str(out), "--data", str(run.parent / "valid.txt")]
    )
    report = capsys.readouterr().out
    assert code == 0 and "9 texts with regard and transformers" in report and "18 of 18 texts equal" in report
    assert {path.name for path in out.iterdir()} == {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    ours, theirs = same(run, out)
    assert theirs.config.model_type == "gpt2" and theirs.config.n_positions == 90
    again = regard.load(out).run.decode
    assert again == ours.run.decode.model_copy(update={"batch": again.batch})
    prompt = "the old cat"
    ids = torch.tensor([[ours.tokenizer.start, *ours.tokenizer.encode([prompt])[0]]])
    made = theirs.generate(ids, attention_mask=torch.ones_like(ids))[0, ids.size(1) :]
    assert ours.tokenizer.decode([made.tolist()]) == ours.predict([prompt])
    card = (out / "README.md").read_text()
    for words in ("pipeline_tag: text-generation", "The tokenizer adds neither START (`<s>`) nor END (`</s>`)",
                  "regard train language", "after 40 steps", "bits_per_byte", "On the validation data:", "test tokens",
                  "train.txt"):  # fmt: skip
        assert words in card, words
    assert str(run.parent) not in card
    assert output_of_example(out / "README.md", prompt) == f"{prompt}{ours.predict(prompt)}\n"


FORMS = {
    "no bias": {"model__biased": False, "model__tied": False, "model__feed__act": "silu", "tokenizer__kind": "char",
                "model__attention__scaled": False, "decode__kind": "sample", "decode__top_p": 0.8, "decode__add_start": False},
    "modern": {"model__size": "modern-tiny", "model__key_heads": 2, "model__positions__base": 500.0, "model__head_width": 10,
               "tokenizer__kind": "word", "tokenizer__symbols": "<café>,<url>", "decode__repetition_penalty": 1.3},
    "modern with bias": {"model__size": "modern-tiny", "model__biased": True, "model__tied": False, "model__norm__eps": 1e-3,
                         "model__feed__act": "gelu_tanh", "tokenizer__kind": "unigram", "decode__kind": "beam", "decode__early_stopping": "first"},
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_every_supported_form(name, tmp_path):
    run = trained(train__steps=12, **FORMS[name])
    report = regard.convert(run, to="huggingface", out=tmp_path / "out")
    assert "texts equal" in report["checked"]
    ours, theirs = same(run, tmp_path / "out")
    assert theirs.config.model_type == ("llama" if "modern" in name else "gpt2")
    assert regard.load(tmp_path / "out").run.decode.strategy.kind == ours.run.decode.strategy.kind
    theirs.save_pretrained(tmp_path / "theirs")
    saved, mine = (load_file(tmp_path / each / "model.safetensors") for each in ("theirs", "out"))
    assert {key: each.shape for key, each in saved.items()} == {key: each.shape for key, each in mine.items()}


def test_changed_generation_settings_apply(run, tmp_path):
    out = tmp_path / "out"
    regard.convert(run, to="huggingface", out=out)
    path = out / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_beams": 2, "max_new_tokens": 3}))
    decode = regard.load(out).run.decode
    assert (decode.strategy.kind, decode.strategy.size, decode.max_tokens) == ("beam", 2, 3)
    assert regard.load(out, decode={"max_tokens": 5}).run.decode.max_tokens == 5


def test_decode_settings_of_older_exports(run, tmp_path):
    """Folders exported before format 2 have the former setting names and no format number."""
    out = tmp_path / "out"
    regard.convert(run, to="huggingface", out=out)
    path = out / "config.json"
    config = json.loads(path.read_text())
    decode, new = config["regard"]["decode"], {"strategy", "stop", "add_start"}
    assert config["regard"].pop("format") == 3 and new == set(decode)
    former = {"kind": "beam", "beam": 3, "top_k": 7, "stop": "first", "until": ["x", "yz"], "begin": False}
    config["regard"]["decode"] = former
    path.write_text(json.dumps(config))
    again = regard.load(out).run.decode
    assert (again.strategy, again.stop, again.add_start) == (Beam(3, early_stopping="first"), ("x", "yz"), False)
    assert again.max_tokens == 10


def test_unsupported_settings(run, tmp_path):
    from regard.families import gpt

    def words(**changes):
        c = gpt.Config.model_validate({"vocab": 50, **gpt.SIZES["tiny"], **changes})
        return format_of_config(c).unsupported(c)

    assert words() == [] == words(**gpt.SIZES["modern-tiny"])
    assert words(attention={"kind": "window", "radius": 4}) == [
        "model.attention.kind=window (expected dense for GPT-2)"
    ]
    assert words(positions="sinusoid", norm="rms") == [
        "model.positions.kind=sinusoid (expected learned for GPT-2)", "model.norm.kind=rms (expected layer for GPT-2)"
    ]  # fmt: skip
    assert words(key_heads=2, head_width=40)[0] == "model.key_heads=2 (expected model.heads=4 for GPT-2)"
    assert words(**gpt.SIZES["modern-tiny"] | {"attention": {"scaled": False}}) == [
        "model.attention.scaled=false (expected true: Llama scales attention scores)"
    ]
    other = trained(model__family="xl", train__steps=1)
    with pytest.raises(UserError, match="cannot become --to huggingface: model.family is xl; expected transformer, "):
        regard.convert(other, to="huggingface", out=tmp_path / "out")
    window = trained(model__attention__kind="window", train__steps=1)
    with pytest.raises(
        UserError,
        match="cannot become a GPT-2 folder or a Llama or Mistral folder; what does not fit: model.attention.kind=",
    ):
        regard.convert(window, to="huggingface", out=tmp_path / "out")


def test_mistral_folder(tmp_path):
    """A modern model with windows: every token attends to itself and the five before it."""
    modern = {"model__size": "modern-tiny", "model__attention__kind": "window", "model__attention__radius": 5}
    window, out = trained(**modern), tmp_path / "out"
    report = regard.convert(window, to="huggingface", out=out)
    assert "regard and transformers" in report["checked"]
    ours, theirs = same(window, out)
    assert type(theirs).__name__ == "MistralForCausalLM" and theirs.config.sliding_window == 6
    assert regard.load(out).run.model.attention.radius == 5
    tokens = torch.randint(4, ours.tokenizer.size, (2, 20), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[:, 0] = 4 + (changed[:, 0] - 3) % 200
    with torch.no_grad():
        difference = (theirs(tokens).logits - theirs(changed).logits).abs().amax((0, 2))
    assert (difference[11:] == 0).all() and (difference[:11] > 0).all()  # two layers reach ten tokens back


def test_windows_that_mistral_does_not_have():
    from regard.families import gpt

    def words(**changes):
        modern = {"vocab": 50, **gpt.SIZES["modern-tiny"], **changes}
        c = gpt.Config.model_validate(modern)
        return format_of_config(c).unsupported(c)

    assert words(attention={"kind": "window", "radius": [4, 4]}) == []
    for attention, refusal in (
        ({"kind": "window", "radius": [4, 5]}, "model.attention.radius=(4, 5) (expected one number for Mistral)"),
        ({"kind": "window", "dilation": 2}, "model.attention.dilation=2 (expected 1 for Mistral)"),
    ):
        assert words(attention=attention) == [refusal]
    assert words(attention={"kind": "window"}, biased=True) == ["model.biased=true (expected false for Mistral)"]
    assert words(attention={"kind": "favor"}) == ["model.attention.kind=favor (expected dense for Llama)"]


def test_wrong_export_is_not_kept(run, tmp_path, monkeypatch):
    whole = HuggingFaceFormat.config
    monkeypatch.setattr(HuggingFaceFormat, "config", lambda self, c: whole(self, c) | {"layer_norm_epsilon": 0.1})
    with pytest.raises(RuntimeError, match="logits that are apart by"):
        regard.convert(run, to="huggingface", out=tmp_path / "out")
    monkeypatch.undo()
    monkeypatch.setattr(
        causal_files,
        "portable_tokenizer",
        lambda tokenizer, add_end: tokenizer_export.portable_tokenizer(tokenizer),
    )
    with pytest.raises(RuntimeError, match="transformers gives other tokens"):
        regard.convert(run, to="huggingface", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tokenizer_of_another_model(run, tmp_path):
    out = tmp_path / "out"
    regard.convert(run, to="huggingface", out=out)
    text = json.loads((out / "tokenizer.json").read_text())
    text["added_tokens"] += [{"id": 300 + i, "content": f"<new {i}>", "special": False, "single_word": False, "lstrip": False,
                              "rstrip": False, "normalized": False} for i in range(3)]  # fmt: skip
    (out / "tokenizer.json").write_text(json.dumps(text))
    with pytest.raises(UserError, match="the tokenizer has 303 entries and the model only 300"):
        regard.load(out)
