"""Hugging Face Marian folders: the same logits, the same tokens, the same greedy and beam texts."""

import json
import shutil

import pytest
import torch
import transformers as hf
from helpers import marian
from helpers.inputs import inputs

import regard
from regard.errors import UserError
from regard.formats.huggingface.marian import names
from regard.formats.huggingface.weight_names import export_weights

TEXTS = [
    *marian.sentences(9, seed=5), ">>up<< the cat sees the dog.", "unseen wörds, and 日本!", "cat", "  the   cat  ",
    ">>not a code the cat",
]  # fmt: skip


@pytest.fixture(scope="module", params=[{}, {"separate": True}, {"scale_embedding": False, "activation_function": "relu"}],
                ids=["shared", "separate", "relu"])  # fmt: skip
def both(request, tmp_path_factory):
    path = marian.folder(tmp_path_factory.mktemp("marian") / "opus", **request.param)
    return (
        path,
        hf.MarianMTModel.from_pretrained(path).eval(),
        hf.MarianTokenizer.from_pretrained(path),
        regard.load(path),
    )


def test_tokens_and_logits(both):
    _, theirs, tokenizer, ours = both
    ids = ours.source.encode(TEXTS)
    assert [[*each, ours.source.end] for each in ids] == tokenizer(TEXTS).input_ids
    targets = [text.upper() for text in TEXTS]
    assert [[*each, 0] for each in ours.target.encode(targets)] == tokenizer(text_target=targets).input_ids
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    target = torch.randint(1, 40, (len(TEXTS), 7))
    with torch.no_grad():
        wanted = theirs(**batch, decoder_input_ids=target).logits
        found = ours.model(inputs(batch.input_ids, batch.attention_mask.bool()), inputs(target))
    assert (found - wanted).abs().max() <= 1e-4


def test_texts_with_the_folders_generation_config(both):
    _, theirs, tokenizer, ours = both
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    for how, words in (({}, {}), ({"kind": "greedy"}, {"num_beams": 1})):
        wanted = tokenizer.batch_decode(theirs.generate(**batch, **words), skip_special_tokens=True)
        assert ours.predict(TEXTS, **how) == wanted
        assert len(set(wanted)) > 3
    records = ours.predict(TEXTS[:2], details=True)
    found = ours.score(TEXTS[:2], [record["text"] for record in records])
    assert all(isinstance(each, float) and each < 0 for each in found)


def test_weights_round_trip(both):
    _, theirs, _, ours = both
    back, state = export_weights(ours.model, names(ours.run.model)), theirs.state_dict()
    assert all(tensor.equal(state[name]) for name, tensor in back.items())
    assert "final_logits_bias" in back and len(back) > 50


def refused(path, words):
    with pytest.raises(UserError) as error:
        regard.load(path)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_refused_folders(both, tmp_path):
    whole, *_ = both
    path = tmp_path / "copy"
    shutil.copytree(whole, path)
    (path / "source.spm").write_bytes(b"not a model")
    refused(path, "source.spm is no sentencepiece model")
    (path / "source.spm").unlink()
    refused(path, "has no source.spm")
    (path / "vocab.json").unlink()
    refused(path, "has no vocab.json")
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[: len(data) // 2])
    refused(path, "cut off or damaged")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    refused(path, "a pickle, which regard never opens")
    (path / "pytorch_model.bin").unlink()
    refused(path, "has no model.safetensors")
    config = json.loads((path / "config.json").read_text())
    for change, words in (
        ({"model_type": "bart"}, "of type 'bart'"),
        ({"activation_function": "mish"}, "activation_function is 'mish'"),
        ({"decoder_attention_heads": 2}, "differ"),
        ({"normalize_before": True}, "normalize_before is true; regard reads Marian folders without it"),
        ({"d_model": 7}, "width 7 does not divide into 3 heads; use 6 or 9 (d_model)"),
        ({"d_model": "wide"}, "d_model is 'wide': Input should be a valid integer"),
    ):
        (path / "config.json").write_text(json.dumps(config | change))
        refused(path, words)
    (path / "config.json").write_text("{")
    refused(path, "not valid JSON")


def test_refused_weights(both, tmp_path):
    from safetensors.torch import load_file, save_file

    whole, *_ = both
    path = tmp_path / "copy"
    shutil.copytree(whole, path)
    tensors = load_file(path / "model.safetensors")
    for name, change, words in (
        ("final_logits_bias", lambda t: None, "has no 'final_logits_bias'"),
        ("model.encoder.layers.0.fc1.weight", lambda t: t[:-1], "has shape (49, 36)"),
        ("extra.weight", lambda t: torch.zeros(1), "1 tensors of the checkpoint have no place"),
    ):
        changed = {**tensors, name: change(tensors.get(name))}
        save_file(
            {key: tensor.contiguous() for key, tensor in changed.items() if tensor is not None},
            path / "model.safetensors",
        )
        refused(path, words)


def test_bad_words_of_several_tokens(both, tmp_path):
    whole, theirs, tokenizer, ours = both
    path = tmp_path / "copy"
    shutil.copytree(whole, path)
    said = [ours.target.encode([text])[0] for text in ours.predict(TEXTS)]
    words = [
        list(each)
        for each in sorted(
            {tuple(ids[i : i + n]) for ids in said[:6] for n in (2, 3) for i in (1, 3) if len(ids) > i + n}
        )
    ]
    settings = json.loads((path / "generation_config.json").read_text())
    settings["bad_words_ids"] += [word for word in words if len(word) > 1]
    (path / "generation_config.json").write_text(json.dumps(settings))
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    obeyed = regard.load(path)
    for how, named in (({}, {}), ({"kind": "greedy"}, {"num_beams": 1})):
        out = theirs.generate(**batch, **named, bad_words_ids=settings["bad_words_ids"])
        assert obeyed.predict(TEXTS, **how) == tokenizer.batch_decode(out, skip_special_tokens=True)
    assert words and obeyed.predict(TEXTS) != ours.predict(TEXTS)


def test_decode_settings_of_a_marian_folder(both):
    *_, ours = both
    some = TEXTS[:6]
    assert all(text.startswith("THE OLD ") for text in ours.predict(some, prefix="THE OLD "))
    for text in ours.predict(some, include=["RED HOUSE", "BIRD"], max_tokens=60):
        assert "RED HOUSE" in text and "BIRD" in text
    plain = ours.predict(some)
    word = plain[0].split()[0][:4]
    assert not any(word in text for text in ours.predict(some, exclude=[word]))
    assert ours.predict(some, kind="sample", nbest=2) == [ours.predict(text, kind="sample", nbest=2) for text in some]
    both_of_them = type(ours).ensemble({"a": ours, "b": ours})
    assert both_of_them.predict(some) == plain


def test_refused_generation_settings(both, tmp_path):
    whole, *_ = both
    path = tmp_path / "copy"
    shutil.copytree(whole, path)
    settings = json.loads((path / "generation_config.json").read_text())
    (path / "generation_config.json").write_text(json.dumps(settings | {"num_return_sequences": 9}))
    refused(path, "generation_config.json: decode.strategy.n is 9, above decode.strategy.size=")
    (path / "generation_config.json").write_text(json.dumps(settings | {"do_sample": True}))
    with pytest.warns(
        UserWarning, match="does not apply these generation settings of the folder: num_beams beside do_sample;"
    ):
        assert regard.load(path).run.decode.strategy.kind == "sample"
    (path / "generation_config.json").write_text(json.dumps(settings | {"num_beams": "many"}))
    refused(path, "generation_config.json: num_beams is 'many'; expected a whole number")
