"""Conversion: Hugging Face and CTranslate2 folders give the outputs of the run; averages; refusals."""

import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers as hf
from helpers import marian, reads, small
from helpers.inputs import inputs
from helpers.readme import output_of_example
from helpers.runs import copy_run, tiny_run

import regard
from regard.cli import main
from regard.errors import UserError
from regard.formats.huggingface import seq2seq
from regard.formats.huggingface.format import HuggingFaceFormat
from regard.formats.huggingface.generation import seq2seq_ids
from regard.formats.huggingface.marian import FORMAT, as_marian
from regard.processors.image.processor import ImageProcessor
from regard.processors.saved import load_processors
from regard.processors.text.tokenizers import load_tokenizer as load_tokenizer

CPU = Path("/proc/cpuinfo")
HAS_VNNI = CPU.exists() and "vnni" in CPU.read_text()  # products of bytes are summed in 32 bits
TEXTS = [*marian.sentences(20, seed=5), "unseen wörds, and 日本 👩‍👩‍👧 </s> <unk>!", "cat", "  the   cat  "]


@pytest.fixture(scope="module")
def run() -> Path:
    """A half-trained run, whose texts differ from the references."""
    return small.half_trained()


def short(steps: int = 40, pairs: int = 400, **settings) -> Path:
    """A barely trained run with the given settings."""
    size = {"model__width": 32, "model__inner": 48, "model__heads": 2}
    return small.translator(steps, pairs, **{"train__eval_every": 1000, "train__save_every": 1000} | size | settings)


def said(capsys, *arguments) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def refused(words: str, *arguments, **named) -> None:
    with pytest.raises(UserError) as error:
        regard.convert(*arguments, **named)
    assert words in str(error.value) and "\n" not in str(error.value)


def generated(folder: Path, texts: list[str], **words) -> list[str]:
    """Generate as the README example does."""
    model, source = hf.MarianMTModel.from_pretrained(folder).eval(), hf.AutoTokenizer.from_pretrained(folder)
    target = hf.AutoTokenizer.from_pretrained(folder, subfolder="target") if (folder / "target").is_dir() else source
    batch = source(texts, return_tensors="pt", padding=True)
    return target.batch_decode(model.generate(**batch, **words), skip_special_tokens=True)


# --- Hugging Face --------------------------------------------------------------------------------------------------


def test_huggingface(run, tmp_path, capsys):
    out, data = tmp_path / "deep" / "marian", run.parent / "files"
    code, report, _ = said(
        capsys, "convert", run, "--to", "huggingface", "--out", out, "--data", f"{data}/test.low,{data}/test.up"
    )
    assert code == 0 and "transformers" in report and "outputs apart by" in report and "bleu" in report
    assert {path.name for path in out.iterdir()} == {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    ours, again = regard.load(run), regard.load(out)
    assert again.run.decode == ours.run.decode.model_copy(update={"batch": again.run.decode.batch})
    for how in ({}, {"kind": "greedy"}, {"beam": 3, "length_penalty": 0.6}):
        assert again.predict(TEXTS, **how) == ours.predict(TEXTS, **how)
    some = [text for text in TEXTS if text.strip() == text]
    limit = 60
    for words, how in (({"num_beams": 1}, {"kind": "greedy"}), ({}, {"early_stopping": "heuristic"})):
        found = generated(out, some, max_new_tokens=limit, **words)
        assert found == ours.predict(some, max_tokens=limit, **how)
    assert len(set(found)) > 10
    card = (out / "README.md").read_text()
    figures = ours.evaluate(((f"{data}/test.low",), (f"{data}/test.up",)))
    for words in ("train: 400 examples, train.low, train.up", "regard train translate", "train.steps=160",
                  "data.train=train.low,train.up", "after 160 steps", figures["bleu_signature"].replace("|", r"\|"),
                  f"| bleu | {figures['bleu']:.4g} |", "On the validation data"):  # fmt: skip
        assert words in card, words
    assert str(run.parent) not in card and card.count(r"nrefs:1\|case:") == 5
    assert output_of_example(out / "README.md", some[0]) == f"{generated(out, some[:1])}\n"


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer__joint": False, "tokenizer__kind": "word", "tokenizer__symbols": "<café>,<url>", "tokenizer__vocab": 60,
         "model__feed__act": "silu", "model__decoder_layers": 2},
        {"model__tied": False, "model__biased": True, "model__positions__layout": "halves", "model__scaled": False,
         "tokenizer__kind": "unigram", "model__feed__act": "gelu_tanh", "decode__kind": "sample", "decode__temperature": 0.7,
         "decode__top_k": 5},
        {"model__tied": False, "tokenizer__joint": False, "tokenizer__kind": "char", "tokenizer__normalize": "nfkc+lower",
         "model__feed__act": "gelu", "decode__max_tokens": 30, "decode__early_stopping": "first"},
    ],
    ids=["separate", "untied", "both"],
)  # fmt: skip
def test_every_supported_form(settings, tmp_path):
    run = short(**settings)
    out = tmp_path / "out"
    report = regard.convert(run, to="huggingface", out=out)
    assert "32 of 32 texts equal" in report["checked"]
    ours, again = regard.load(run), regard.load(out)
    texts = [*TEXTS, "a <café> and <url>"]
    assert ours.source.encode(texts) == again.source.encode(texts)
    how = {"kind": "beam"}
    assert ours.predict(texts, **how) == again.predict(texts, **how)
    assert ours.predict(texts) == again.predict(texts)
    theirs, tokenizer = hf.MarianMTModel.from_pretrained(out).eval(), hf.AutoTokenizer.from_pretrained(out)
    assert tokenizer(texts).input_ids == [[*ids, 2] for ids in ours.source.encode(texts)]
    assert tokenizer.batch_decode(tokenizer(texts).input_ids, skip_special_tokens=True) == ours.source.decode(
        ours.source.encode(texts)
    )
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    target = torch.randint(4, ours.target.size, (len(texts), 6))
    with torch.no_grad():
        wanted = ours.model(inputs(batch.input_ids, batch.attention_mask.bool()), inputs(target))
        assert (theirs(**batch, decoder_input_ids=target).logits - wanted).abs().max() <= 1e-4


def test_weights_equal_save_pretrained(run, tmp_path):
    """Whichever tables are shared, transformers finds no missing and no unexpected tensor in the file."""
    for number, settings in enumerate(({}, {"model.tied": False}, {"tokenizer.joint": False}, {"tokenizer.joint": False, "model.tied": False})):  # fmt: skip
        model = regard.build("translate", {"model.size": "tiny", "tokenizer.vocab": 40, **settings}).eval()
        c = regard.resolve("translate", {"model.size": "tiny", **settings}).run.model
        vocab = {"vocab": 40, "target_vocab": 0 if settings.get("tokenizer.joint", True) else 40}
        c = c.model_copy(update=vocab)
        found = FORMAT.tensors(SimpleNamespace(module=model, run=SimpleNamespace(model=c)))
        ids = seq2seq_ids(regard.load(run).source)
        theirs = hf.MarianMTModel(hf.MarianConfig(**FORMAT.config(c), **ids, max_position_embeddings=64))
        theirs.save_pretrained(tmp_path / str(number))
        from safetensors.torch import load_file

        wanted = load_file(tmp_path / str(number) / "model.safetensors")
        assert {name: t.shape for name, t in found.items()} == {name: t.shape for name, t in wanted.items()}


def test_interleaved_becomes_halves_exactly():
    model = regard.build("translate", {"model.size": "tiny", "model.layers": 2, "tokenizer.vocab": 40}).double().eval()
    c = regard.resolve("translate", {"model.size": "tiny", "model.layers": 2}).run.model.model_copy(
        update={"vocab": 40}
    )
    twin, halves = as_marian(model.float(), c)
    assert halves.positions.layout == "halves"
    source, target = inputs(torch.randint(0, 40, (3, 11))), inputs(torch.randint(0, 40, (3, 7)))
    apart = model.double()(source, target) - twin.double()(source, target)
    assert apart.abs().max() < 1e-5  # the sinusoid itself is float32


def test_changed_generation_settings_apply(run, tmp_path):
    out = tmp_path / "out"
    regard.convert(run, to="huggingface", out=out)
    assert regard.load(out).run.decode.max_tokens == 0  # by the length of each source, as in the run
    path = out / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_beams": 2, "max_length": 9}))
    decode = regard.load(out).run.decode
    assert (decode.strategy.size, decode.max_tokens, decode.strategy.early_stopping) == (2, 8, "heuristic")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"length_penalty": 0.0}))
    assert regard.load(out).run.decode.strategy.length_penalty == 0.0


def test_decode_settings_of_older_exports(run, tmp_path):
    """Folders exported before format 2 have the former setting names and no format number."""
    out = tmp_path / "out"
    regard.convert(run, to="huggingface", out=out)
    path = out / "config.json"
    config = json.loads(path.read_text())
    entry = config["regard"]
    assert entry.pop("format") == 3
    strategy = entry["decode"].pop("strategy")
    entry["decode"] |= {"kind": "beam", "length_penalty": strategy["length_penalty"], "stop": "first", "beam": 5}
    entry["decode"] |= {"temperature": 0.7, "top_k": 0}  # of sampling: without an effect
    path.write_text(json.dumps(config))
    settings = json.loads((out / "generation_config.json").read_text()) | {"early_stopping": True}
    (out / "generation_config.json").write_text(json.dumps(settings))
    decode = regard.load(out).run.decode
    assert (decode.strategy.early_stopping, decode.strategy.size, decode.max_tokens) == ("first", 5, 0)
    for broken in ({"decode": 3}, {"decode": {"beam": "x"}}, 3):
        path.write_text(json.dumps(config | {"regard": broken}))
        assert regard.load(out).run.decode.max_tokens > 0  # as generation_config.json says


def test_incomplete_exported_folders(run, tmp_path):
    out = tmp_path / "out"
    regard.convert(run, to="huggingface", out=out)

    def broken(words: str) -> None:
        with pytest.raises(UserError) as error:
            regard.load(out)
        assert words in str(error.value)

    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"eos_token_id": 7}))
    broken("eos_token_id is 7 and 2 in tokenizer.json")
    (out / "config.json").write_text(json.dumps(config))
    other = json.loads((out / "tokenizer.json").read_text())
    other["added_tokens"] = [token for token in other["added_tokens"] if token["id"] != 1]
    del other["model"]["vocab"]["<s>"]
    whole = (out / "tokenizer.json").read_text()
    (out / "tokenizer.json").write_text(json.dumps(other))
    broken("decoder_start_token_id is 1 and 0 in tokenizer.json")  # without START it would begin with PAD
    del other["model"]["vocab"]["</s>"]
    other["added_tokens"] = []
    (out / "tokenizer.json").write_text(json.dumps(other))
    broken("tokenizer.json is n")  # no tokenizer of this program, or not whole
    (out / "tokenizer.json").write_text(whole)
    (out / "tokenizer.json").unlink()
    broken("tokenizer.json cannot be read")


# --- CTranslate2 ---------------------------------------------------------------------------------------------------


def translated(folder: Path, system, texts: list[str], **words) -> list[str]:
    import ctranslate2
    from tokenizers import Tokenizer

    translator = ctranslate2.Translator(str(folder), intra_threads=1)
    source = Tokenizer.from_file(str(folder / "tokenizer.json"))
    source.encode_special_tokens = True
    other = folder / "target" / "tokenizer.json"
    target = Tokenizer.from_file(str(other)) if other.is_file() else source
    tokens = [source.encode(text, add_special_tokens=False).tokens for text in texts]
    found = translator.translate_batch(
        tokens, suppress_sequences=[["<pad>"], ["<s>"]], max_decoding_length=60, min_decoding_length=0, **words
    )
    return [target.decode([target.token_to_id(token) for token in one.hypotheses[0]]) for one in found]


def test_ctranslate2(run, tmp_path, capsys):
    out = tmp_path / "ct2"
    code, report, _ = said(capsys, "convert", run, "--to", "ctranslate2", "--out", out)
    assert code == 0 and re.search(r"\b(1[56]) of \1 texts equal", report)  # one may not end
    ours, texts = regard.load(run), [text for text in TEXTS if text.strip()]
    for beam, penalty in ((1, 1.0), (5, 1.0), (3, 0.6)):
        how = {"kind": "greedy"} if beam == 1 else {"beam": beam, "early_stopping": "first", "length_penalty": penalty}
        wanted = ours.predict(texts, max_tokens=60, **how)
        assert translated(out, ours, texts, beam_size=beam, length_penalty=penalty) == wanted
    assert (
        output_of_example(out / "README.md", texts[0])
        == translated(out, ours, texts[:1], beam_size=5, length_penalty=1.0)[0] + "\n"
    )
    small_out = tmp_path / "int8"
    code, report, _ = said(capsys, "convert", run, "--to", "ctranslate2", "--precision", "int8", "--out", small_out)
    found = re.search(r"\b(\d+) of 1[56] texts equal to those of fp32, log-probabilities apart by (\S+)", report)
    assert code == 0 and found and float(found[2]) < 1, report  # the run itself is not rounded
    if HAS_VNNI:  # without it, CTranslate2's sums of products overflow now and then
        assert int(found[1]) >= 12, report
    assert (small_out / "model.bin").stat().st_size < 0.6 * (out / "model.bin").stat().st_size
    load_tokenizer(out / "tokenizer.json")


@pytest.mark.parametrize(
    "settings",
    [
        {"model__prenorm": True, "model__positions__kind": "learned", "model__positions__tokens": 90,
         "model__feed__kind": "gated", "model__norm__kind": "rms", "tokenizer__joint": False},
        {"model__attention__scaled": False, "model__tied": False, "model__biased": True, "model__scaled": False,
         "model__norm__eps": 1e-3, "model__feed__act": "gelu", "model__decoder_layers": 2},
        {"model__feed__act": "silu", "model__positions__layout": "whisper", "model__feed__kind": "gated"},
    ],
    ids=["prenorm", "unscaled", "whisper"],
)  # fmt: skip
def test_every_supported_form_of_ctranslate2(settings, tmp_path):
    run = short(**settings)
    report = regard.convert(run, to="ctranslate2", out=tmp_path / "out")["checked"]
    assert (
        "texts equal" in report and float(report.rpartition(" ")[2]) < 1e-5
    )  # texts may tie: the run has learned nothing
    refused("cannot become a Marian folder", run, to="huggingface", out=tmp_path / "other")


# --- averages ------------------------------------------------------------------------------------------------------


def test_average(run, tmp_path, capsys):
    from safetensors.torch import load_file

    out = tmp_path / "mean"
    assert said(capsys, "convert", run, "--average", 3, "--out", out)[:2] == (0, f"out {out}\n")
    parts = [load_file(run / "checkpoints" / f"step-{step}" / "model.safetensors") for step in (80, 120, 160)]
    found = load_file(out / "model.safetensors")
    assert found.keys() == parts[0].keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, sum(part[name] for part in parts) / 3)
    assert json.loads((out / "run.json").read_text())["weights"] == {"step": 160, "averaged": 3}
    texts = marian.sentences(5)
    whole, last = regard.load(out), regard.load(run)
    assert whole.score(texts, texts) != last.score(texts, texts)
    both = tmp_path / "both"
    regard.convert(run, average=3, to="huggingface", out=both)
    assert regard.load(both).predict(texts) == whole.predict(texts)
    assert "mean of the last 3 checkpoints" in (both / "README.md").read_text()
    assert regard.load(run).score(texts, texts) == last.score(texts, texts)  # the run is as it was


# --- processors ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def moods() -> Path:
    """A classifier of two labels."""
    return reads.stored_run("classify", train__steps=2, train__save_every=1, train__keep=2)


def tuned(base: Path) -> Path:
    """A classifier tuned over `base`, whose labels have other names."""
    lines = [(text, {"glad": "up", "sad": "down"}[label]) for text, label in reads.labeled_examples(60, 5)]
    own = {
        "data.train": "{files}/train.tsv",
        "start": str(base),
        "tune.kind": "lora",
        "train.lr": 1e-2,
        "train.steps": 20,
    }
    files = {"train.tsv": reads.lines_of_texts(lines)}
    return tiny_run("classify", files, **own, **{"train.tensorboard": False, "device": "cpu"})


def same_processors(ours: Path, theirs: Path) -> bool:
    """True if run.json lists the same processors and their files are equal."""
    entries = [json.loads((each / "run.json").read_text())["processors"] for each in (ours, theirs)]
    files = {entry["file"] for entry in entries[0].values()}
    return entries[0] == entries[1] and all(
        (ours / name).read_bytes() == (theirs / name).read_bytes() for name in files
    )


def test_averaged_and_merged_runs_keep_every_processor(moods, tmp_path):
    regard.convert(moods, average=2, out=tmp_path / "mean")
    assert same_processors(moods, tmp_path / "mean") and regard.load(tmp_path / "mean").labels.names == ["glad", "sad"]
    run = tuned(moods)
    regard.convert(run, merge=True, out=tmp_path / "merged")
    assert same_processors(run, tmp_path / "merged") and regard.load(tmp_path / "merged").labels.names == ["down", "up"]
    images = copy_run(moods, tmp_path / "images")
    ImageProcessor(resize=7).save(images / "image.json")  # of a task that also reads pictures
    about = json.loads((images / "run.json").read_text())
    about["processors"]["image"] = {"kind": "image", "file": "image.json"}
    (images / "run.json").write_text(json.dumps(about))
    regard.convert(images, average=2, out=tmp_path / "more")
    assert load_processors(tmp_path / "more")["image"] == ImageProcessor(resize=7)


def test_a_hugging_face_folder_has_the_labels_and_the_tokenizer(moods, tmp_path):
    regard.convert(moods, to="huggingface", out=tmp_path / "hf")
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert config["id2label"] == {"0": "glad", "1": "sad"} and config["label2id"] == {"glad": 0, "sad": 1}
    ours, again = regard.load(moods), regard.load(tmp_path / "hf")
    assert again.processors.keys() == ours.processors.keys() == {"text", "label"}
    texts = ["a good day", "Größe </s>"]
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "hf")
    expected = [ours.processors["text"].encode(text).tolist() for text in texts]
    assert tokenizer(texts, add_special_tokens=False)["input_ids"] == expected
    assert [again.processors["text"].encode(text).tolist() for text in texts] == expected
    assert again.processors["label"].encode("sad") == 1


def test_a_peft_folder_has_the_labels_of_its_run(moods, tmp_path):
    run = tuned(moods)
    regard.convert(run, to="peft", out=tmp_path / "peft")
    over, ours = regard.load(moods, tune=tmp_path / "peft"), regard.load(run)
    texts = [text for text, _ in reads.labeled_examples(20, 3)]
    assert over.labels.names == ["down", "up"] and over.predict(texts) == ours.predict(texts)
    listed = json.loads((tmp_path / "peft/processors.json").read_text())
    assert listed == json.loads((run / "run.json").read_text())["processors"]
    assert (tmp_path / "peft/tokenizer.json").read_bytes() == (run / "tokenizer.json").read_bytes()


def test_two_tokenizers_are_kept(tmp_path):
    run = short(train__save_every=20, train__keep=2, tokenizer__joint=False)
    sides, texts = regard.load(run).processors, TEXTS[:3]
    for to in ("ctranslate2", "huggingface"):
        regard.convert(run, to=to, out=tmp_path / to)
        for name, side in zip(("tokenizer.json", "target/tokenizer.json"), sides.values(), strict=True):
            assert load_tokenizer(tmp_path / to / name).encode(texts) == [side.encode(each).tolist() for each in texts]
    regard.convert(run, average=2, out=tmp_path / "mean")
    again = regard.load(tmp_path / "mean").processors
    assert same_processors(run, tmp_path / "mean") and again["source"] is not again["target"]


# --- what is refused -----------------------------------------------------------------------------------------------


def test_refused_arguments(run, tmp_path, capsys, monkeypatch):
    new = tmp_path / "new"
    refused("--to onnx is no format; expected huggingface, ctranslate2 or peft", run, to="onnx", out=new)
    refused("nothing to convert to", run, out=new)
    refused("--average 1 averages nothing", run, average=1, out=new)
    refused("has 3 checkpoints and not the 9 of --average", run, average=9, out=new)
    refused("--precision int4 is unknown", run, to="ctranslate2", precision="int4", out=new)
    refused("--precision int8 is for --to ctranslate2", run, to="huggingface", precision="int8", out=new)
    refused("exists; choose another --out", run, to="huggingface", out=tmp_path)
    refused("is not a run folder: it has no run.json", tmp_path, to="huggingface", out=new)
    code, _, err = said(capsys, "convert", run, "--to", "huggingface")
    assert code == 2 and "missing option '--out'" in err
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "tokenizer.json").unlink()
    refused("tokenizer.json cannot be read", copy, to="huggingface", out=new)
    shutil.copy(run / "tokenizer.json", copy)
    (copy / "model.safetensors").unlink()
    refused("saved its weights", copy, to="huggingface", out=new)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    refused("pip install 'regard[export]'", run, to="ctranslate2", out=new)
    assert not new.exists()


def test_every_unsupported_setting_is_named(tmp_path):
    run = short(
        1, 60, model__prenorm=True, model__positions__kind="buckets", model__attention__kind="additive",
        model__feed__kind="gated", model__norm__kind="rms",
    )  # fmt: skip
    for words in ("model.prenorm=true", "model.positions.kind=buckets", "model.attention.kind=additive",
                  "model.feed.kind=gated", "model.norm.kind=rms"):  # fmt: skip
        refused(words, run, to="huggingface", out=tmp_path / "new")
    refused("model.positions.kind=buckets (expected sinusoid or learned)", run, to="ctranslate2", out=tmp_path / "new")


def test_wrong_export_is_not_kept(run, tmp_path, monkeypatch):
    """The self-check finds wrong weights with our own reader, and wrong tokens with transformers."""
    tensors = HuggingFaceFormat.tensors

    def damaged(self, predictor):
        found = tensors(self, predictor)
        found["model.decoder.layers.0.fc2.weight"][3, 5] += 0.5
        return found

    monkeypatch.setattr(HuggingFaceFormat, "tensors", damaged)
    with pytest.raises(RuntimeError, match="the folder gives logits that are apart by"):
        regard.convert(run, to="huggingface", out=tmp_path / "new")
    monkeypatch.setattr(HuggingFaceFormat, "tensors", tensors)
    monkeypatch.setattr(seq2seq, "portable_tokenizer", lambda text: text.backend)  # END is missing
    with pytest.raises(RuntimeError, match="transformers gives other tokens for"):
        regard.convert(run, to="huggingface", out=tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == []


def test_random_sentences_replace_missing_data(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    about = json.loads((copy / "run.json").read_text())
    about["config"]["data"] |= {name: [["gone.low"], ["gone.up"]] for name in ("train", "valid", "test")}
    (copy / "run.json").write_text(json.dumps(about))
    report = regard.convert(copy, to="huggingface", out=tmp_path / "out")
    assert "8 sentences" in report["checked"]
