"""GGUF files: logits equal transformers' own reading of them, encodings equal those of the original tokenizers."""

import random
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers as hf
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize
from helpers import causal, gguf_files
from helpers.inputs import inputs
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

import regard
from regard.api import convert
from regard.cli import main
from regard.config.run_folder import read_run
from regard.errors import UserError

SHAPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
IDS = torch.tensor([[1, 5, 77, 200, 300, 12, 9, 40, 3, 250]])


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """The sentencepiece model of the files."""
    return gguf_files.sentencepiece_model(tmp_path_factory.mktemp("pieces"))


def hf_model(kind: str = "llama", **changes):
    config, model = causal.KINDS[kind]
    return causal.loud(model(config(**SHAPE | {"vocab_size": 330} | changes)))


def write(path: Path, model, pieces, kind: str = "llama", type_of=lambda name: Type.F32, parts: int = 1, **fields):
    """A file of the model; `fields` replace or remove metadata, with __ for dots."""
    own = gguf_files.metadata(model.config, kind) | gguf_files.sentencepiece_fields(pieces)
    own |= {key.replace("__", "."): value for key, value in fields.items()}
    return gguf_files.write(path, own, gguf_files.tensors(model, kind), type_of, kind, parts)


@pytest.fixture(scope="module")
def small(tmp_path_factory, pieces):
    """A file in Q8_0."""
    return write(tmp_path_factory.mktemp("small") / "small.gguf", hf_model(), pieces, type_of=lambda name: Type.Q8_0)


def logits(path: Path, ids: torch.Tensor = IDS) -> torch.Tensor:
    with torch.no_grad():
        return regard.load(path, device="cpu").model(inputs(ids))


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return bool((ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()) and theirs.std() > 0.3


# --- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "type_", [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q5_1, Type.Q4_0], ids=lambda each: each.name
)
def test_logits_equal_those_of_transformers(type_, pieces, tmp_path):
    model = hf_model(num_key_value_heads=2)
    path = write(tmp_path / "x.gguf", model, pieces, type_of=lambda name: type_)
    theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="x.gguf").eval()
    with torch.no_grad():
        assert close(logits(path), theirs(IDS).logits)
        assert type_ is not Type.F32 or close(logits(path), model(IDS).logits)


@pytest.mark.parametrize(
    ("kind", "changes", "fields"),
    [
        ("llama", {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, {}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}, {}),
        ("llama", {"num_key_value_heads": 4}, {"llama__attention__head_count_kv": None, "llama__rope__dimension_count": None}),
        ("mistral", {"sliding_window": 4, "num_key_value_heads": 2}, {"llama__attention__sliding_window": 4}),
        ("qwen2", {"num_key_value_heads": 2, "rms_norm_eps": 1e-5}, {}),
    ],
)  # fmt: skip
def test_every_architecture_and_its_settings(kind, changes, fields, pieces, tmp_path):
    model = hf_model(kind, **changes)
    path = write(tmp_path / "x.gguf", model, pieces, "qwen2" if kind == "qwen2" else "llama", **fields)
    with torch.no_grad():
        assert close(logits(path), model(IDS).logits)


def test_a_llama_with_biases_of_query_key_and_value_alone(pieces, tmp_path):
    """Written as architecture llama, with rows in pairs, biases included."""
    model = hf_model("qwen2", num_key_value_heads=2)
    path = write(tmp_path / "x.gguf", model, pieces)
    with torch.no_grad():
        assert close(logits(path), model(IDS).logits)


def test_a_head_width_of_its_own(pieces, tmp_path):
    model = hf_model(head_dim=24)
    widths = {
        f"llama__{key}": 24 for key in ("attention__key_length", "attention__value_length", "rope__dimension_count")
    }
    with torch.no_grad():
        assert close(logits(write(tmp_path / "x.gguf", model, pieces, **widths)), model(IDS).logits)


def test_frequencies_of_one_change_nothing(pieces, tmp_path):
    model = hf_model()
    own = gguf_files.metadata(model.config, "llama") | gguf_files.sentencepiece_fields(pieces)
    arrays = gguf_files.tensors(model, "llama")
    plain = gguf_files.write(tmp_path / "a.gguf", own, arrays)
    ones = gguf_files.write(tmp_path / "b.gguf", own, arrays | {"rope_freqs.weight": np.ones(8, np.float32)})
    assert logits(plain).equal(logits(ones))
    scaled = np.linspace(1, 8, 8).astype(np.float32)
    with pytest.raises(UserError, match=r"c\.gguf: rope_freqs\.weight scales the rotary positions"):
        regard.load(gguf_files.write(tmp_path / "c.gguf", own, arrays | {"rope_freqs.weight": scaled}))


def test_every_type_that_the_package_dequantizes(pieces, tmp_path):
    """Matrices of random blocks, one type after the other, have the values that the package gives them."""
    model = hf_model(hidden_size=256, intermediate_size=256, num_hidden_layers=4)
    own = gguf_files.metadata(model.config, "llama") | gguf_files.sentencepiece_fields(pieces)
    arrays, generator = gguf_files.tensors(model, "llama"), np.random.default_rng(0)
    types = [each for each in gguf.quants._type_traits if each is not Type.BF16]
    feeds = [name for name in arrays if "ffn" in name and arrays[name].ndim > 1] + [
        f"blk.{i}.attn_v.weight" for i in range(4)
    ]
    assert len(types) > 20
    for first in range(0, len(types), len(feeds)):
        chosen = dict(zip(feeds, types[first:], strict=False))
        for name, type_ in chosen.items():
            width = gguf.GGML_QUANT_SIZES[type_][1] * 256 // gguf.GGML_QUANT_SIZES[type_][0]
            arrays[name] = generator.integers(0, 0x30, (256, width), np.uint8)  # scales stay finite
        of_type = lambda name, chosen=chosen: chosen.get(name, Type.F32)  # noqa: E731
        path = gguf_files.write(tmp_path / f"{first}.gguf", own, arrays, of_type)
        state = regard.load(path, device="cpu").model.state_dict()
        places = {"ffn_gate": "feed.gate", "ffn_up": "feed.into", "ffn_down": "feed.out", "attn_v": "attention.value"}
        for name, type_ in chosen.items():
            _, layer, part, _ = name.split(".")
            found = state[f"stack.layers.{layer}.{places[part]}.weight"]
            assert found.equal(torch.from_numpy(dequantize(arrays[name], type_))), (name, type_)
            arrays[name] = gguf_files.tensors(model, "llama")[name]


def test_a_model_in_several_parts(pieces, tmp_path):
    model = hf_model()
    whole = write(tmp_path / "whole.gguf", model, pieces)
    write(tmp_path / "parts/x.gguf", model, pieces, parts=3)
    files = sorted((tmp_path / "parts").iterdir())
    assert [each.name for each in files] == [f"x-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert logits(tmp_path / "parts").equal(logits(whole))
    files[1].unlink()
    with pytest.raises(UserError, match=r"is one of 3 parts and x-00002-of-00003\.gguf is missing; put all of them"):
        regard.load(files[0])


# --- tokenizers ------------------------------------------------------------------------------------------------------


def random_texts(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    words = [
        *" ".join(causal.SENTENCES).split(),
        "the",
        "don't",
        "I'LL",
        "123",
        "4567",
        "…",
        "日本",
        "é",
        "e\u0301",
        "👩‍👩‍👧",
        "<s>",
        "</s>",
        "A",
        "Bc",
    ]
    spaces = [" ", " ", " ", "  ", "\n", "\t", "", "\r\n", "\u00a0", ", ", ".\n\n", "/"]
    return [*causal.TEXTS, " ", "\n", "   three"] + [
        "".join(rng.choice(words) + rng.choice(spaces) for _ in range(rng.randrange(1, 12))) for _ in range(count)
    ]


def test_encodings_equal_those_of_sentencepiece(small, pieces):
    text = regard.load(small, device="cpu").tokenizer
    assert (text.start, text.end, text.unk, text.adds_start) == (1, 2, 0, True)
    texts = random_texts(400)
    encoded = text.encode(texts)
    for one, ids in zip(texts, encoded, strict=True):
        assert ids == pieces.encode(one), one
    assert text.decode(encoded) == texts  # the added space is removed again
    theirs = hf.AutoTokenizer.from_pretrained(small.parent, gguf_file=small.name)
    plain = [
        one for one in texts if not one.startswith((" ", "\t")) and "s>" not in one
    ]  # there it differs from the original
    assert text.encode(plain) == theirs(plain, add_special_tokens=False).input_ids


def test_a_sentencepiece_model_without_space_prefix_and_start(tmp_path):
    pieces = gguf_files.sentencepiece_model(tmp_path, add_dummy_prefix=False)
    none = {
        f"tokenizer__ggml__{key}": None for key in ("bos_token_id", "eos_token_id", "unknown_token_id", "token_type")
    }
    off = {"tokenizer__ggml__add_bos_token": False, "tokenizer__ggml__add_space_prefix": False}
    text = regard.load(write(tmp_path / "x.gguf", hf_model(), pieces, **none, **off), device="cpu").tokenizer
    assert (text.start, text.end, text.unk, text.pad, text.adds_start) == (1, 2, 0, 2, False)
    texts = random_texts(50)
    encoded = text.encode(texts)
    assert encoded == pieces.encode(texts) and text.decode(encoded) == texts


def original(pre: str, backend: Tokenizer) -> Tokenizer:
    """The tokenizer as the original model's tokenizer.json has it, with the vocabulary of `backend`."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS as SPLITS

    own = Tokenizer.from_str(backend.to_str())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre not in SPLITS)
    first = {"smollm": [pre_tokenizers.Digits(individual_digits=True)], "gpt-2": []}
    steps = first[pre] if pre in first else [pre_tokenizers.Split(Regex(SPLITS[pre]), "isolated")]
    own.pre_tokenizer = pre_tokenizers.Sequence([*steps, byte_level])
    if pre == "qwen2":
        own.normalizer = normalizers.NFC()
    own.encode_special_tokens = True
    return own


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "deepseek-r1-qwen", "tekken"])
def test_byte_level_encodings_equal_those_of_the_original(pre, tmp_path):
    backend = causal.byte_level(330, "<s>", "</s>")
    backend.add_tokens(["<think>"])
    fields = gguf_files.byte_level_fields(backend, pre)
    model = hf_model(vocab_size=backend.get_vocab_size())
    own = gguf_files.metadata(model.config, "llama") | fields
    text = regard.load(
        gguf_files.write(tmp_path / "x.gguf", own, gguf_files.tensors(model, "llama")), device="cpu"
    ).tokenizer
    assert (text.start, text.end, text.adds_start) == (0, 1, pre in ("llama-bpe", "tekken"))
    texts = [*random_texts(150), "a <think>b</think>"]
    theirs = original(pre, backend)
    for one, ids in zip(texts, text.encode(texts), strict=True):
        assert ids == theirs.encode(one).ids, one
    composed = [one for one in texts if pre != "qwen2" or one.isascii()]
    assert text.decode(text.encode(composed)) == composed


def test_a_whole_word_of_the_vocabulary_is_one_token(tmp_path):
    """Llama 3 takes a word that is in its vocabulary whatever the merges say, GPT-2 does not."""
    names = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "do", "cat"]
    vocab = {name: number for number, name in enumerate(names)}
    backend = Tokenizer(models.BPE(vocab, [("d", "o")]))
    backend.decoder = decoders.ByteLevel()
    model = hf_model(vocab_size=len(vocab))
    for pre, count in (("llama-bpe", 1), ("gpt-2", 3)):
        own = gguf_files.metadata(model.config, "llama") | gguf_files.byte_level_fields(backend, pre)
        path = gguf_files.write(tmp_path / f"{pre}.gguf", own, gguf_files.tensors(model, "llama"))
        assert len(regard.load(path, device="cpu").tokenizer.encode(["cat"])[0]) == count


# --- use -------------------------------------------------------------------------------------------------------------


def test_every_way_to_name_a_file(small, capsys):
    predictor = regard.load(small, device="cpu")
    assert predictor.run.task == "language" and predictor.run.decode.add_start
    assert regard.load(small.parent, device="cpu").predict("the cat", max_tokens=4) == predictor.predict(
        "the cat", max_tokens=4
    )
    assert main(["predict", str(small), "--prompt", "the", "decode.max_tokens=3", "device=cpu"]) == 0
    assert main(["eval", str(small)]) == 2
    assert "names no test data; give some with --data" in capsys.readouterr().err


def test_training_and_tuning_from_a_file(small, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(causal.SENTENCES * 9))
    data = {f"data.{split}": str(tmp_path / "texts.txt") for split in ("train", "valid")}
    fast = {"train.steps": 2, "train.tokens": 100, "data.max_tokens": 16, "train.tensorboard": False, "device": "cpu"}
    run = regard.train("language", {"start": str(small), **data, **fast}, out=tmp_path / "run")
    assert run.run.model.width == 64 and run.tokenizer.encode(["the cat"]) == regard.load(small).tokenizer.encode(
        ["the cat"]
    )
    assert regard.load(tmp_path / "run").predict("a", max_tokens=3) == run.predict("a", max_tokens=3)
    tuned = regard.train(
        "language", {"start": str(small.parent), "tune.kind": "lora", **data, **fast}, out=tmp_path / "lora"
    )
    assert regard.load(tmp_path / "lora").predict("a", max_tokens=3) == tuned.predict("a", max_tokens=3)
    assert "commit" not in read_run(tmp_path / "lora")["start"]


def test_a_file_becomes_a_hugging_face_folder(small, tmp_path):
    report = convert(small, to="huggingface", out=tmp_path / "folder")
    assert "texts equal" in report["checked"]
    assert "The weights are those of small.gguf." in (tmp_path / "folder/README.md").read_text()
    theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "folder").eval()
    with torch.no_grad():
        assert close(logits(small), theirs(IDS).logits) and logits(tmp_path / "folder").equal(logits(small))
    with pytest.raises(
        UserError, match=r"is not a run folder: .* \(a GGUF file can become another format, with --to alone"
    ):
        convert(small, average=3, out=tmp_path / "mean")


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"llama__expert_count": 8}, "llama.expert_count is 8; regard reads models with no experts, load the original"),
        ({"llama__rope__scaling__type": "yarn"}, "llama.rope.scaling.type is 'yarn'; regard reads models with positions that"),
        ({"llama__rope__dimension_count": 8}, "llama.rope.dimension_count is 8; regard reads models with as many as a head"),
        ({"llama__attention__value_length": 8}, "llama.attention.value_length is 8"),
        ({"llama__attention__causal": False}, "llama.attention.causal is False; regard reads models with a causal model"),
        ({"llama__attention__head_count": [4, 2]}, "llama.attention.head_count differs from layer to layer"),
        ({"llama__embedding_length": None}, "x.gguf has no 'llama.embedding_length'; fetch"),
        ({"tokenizer__ggml__model": "t5"}, "tokenizer.ggml.model is 't5'; regard reads llama (sentencepiece) and gpt2"),
        ({"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__merges": ["a b"]}, "tokenizer.ggml.pre is 'default'; regard reads llama-bpe, llama3, "),
        ({"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__merges": ["a b"], "tokenizer__ggml__pre": "gpt-2"}, "the vocabulary does not fit its merges (Error while"),
        ({"tokenizer__ggml__model": None}, "tokenizer.ggml.model is None; regard reads llama"),
        ({"tokenizer__ggml__scores": None}, "x.gguf has no 'tokenizer.ggml.scores'; fetch"),
        ({"tokenizer__ggml__eos_token_id": 999}, "tokenizer.ggml.eos_token_id is 999, but there are 330 tokens"),
    ],
)  # fmt: skip
def test_what_regard_cannot_represent_is_refused(fields, words, pieces, tmp_path):
    path = write(tmp_path / "x.gguf", hf_model(), pieces, **fields)
    with pytest.raises(UserError) as error:
        regard.load(path)
    assert words in str(error.value) and "x.gguf" in str(error.value)


def test_a_byte_level_file_without_an_end(tmp_path):
    fields = gguf_files.byte_level_fields(causal.byte_level(300, "<s>", "</s>"), "gpt-2", eos_token_id=None)
    model = hf_model(vocab_size=300)
    own = gguf_files.metadata(model.config, "llama") | fields
    with pytest.raises(UserError, match=r"x\.gguf has no 'tokenizer.ggml.eos_token_id'"):
        regard.load(gguf_files.write(tmp_path / "x.gguf", own, gguf_files.tensors(model, "llama")))


def test_other_architectures_and_damaged_files(small, pieces, tmp_path, monkeypatch):
    other = gguf_files.write(tmp_path / "g.gguf", {}, {"a": np.zeros((2, 2), np.float32)}, kind="gemma3")
    with pytest.raises(
        UserError, match="general.architecture is 'gemma3'; regard reads GGUF files of llama and qwen2, load the"
    ):
        regard.load(other)
    with pytest.raises(UserError, match="general.architecture is 'gemma3'"):
        regard.resolve("language", {"start": str(other)})
    (tmp_path / "cut.gguf").write_bytes(small.read_bytes()[:9000])
    with pytest.raises(UserError, match=r"cut\.gguf is no complete GGUF file \(.*\); fetch it again"):
        regard.load(tmp_path / "cut.gguf")
    whole = small.read_bytes()
    for data, words in (
        (whole[:-100], r"no complete GGUF file \(\S+\.weight: .*\); fetch it again"),
        (b"GGML" + whole[4:], "it does not begin with GGUF"),
        (whole[:4] + b"\0\0\0\3" + whole[8:], "version 50331648; expected 2 or 3, little-endian"),
        (whole[:4] + whole[4:60], "cut off|unpack_from"),
    ):
        (tmp_path / "cut.gguf").write_bytes(data)
        with pytest.raises(UserError, match=words):
            regard.load(tmp_path / "cut.gguf")
    with pytest.raises(UserError, match=r"has 2 GGUF files \(cut\.gguf, g\.gguf\); name the one to load"):
        regard.load(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UserError, match=r"notes\.txt is a file but not a GGUF file, and not a run; give a run folder"):
        regard.load(tmp_path / "notes.txt")
    model = hf_model()
    own = gguf_files.metadata(model.config, "llama") | gguf_files.sentencepiece_fields(pieces)
    arrays = gguf_files.tensors(model, "llama")
    with pytest.raises(UserError, match=r"blk\.0\.what"):
        regard.load(
            gguf_files.write(tmp_path / "more.gguf", own, arrays | {"blk.0.what.weight": np.ones((2, 2), np.float32)})
        )
    whole = arrays | {"blk.0.attn_v.weight": np.ones((64, 64), np.int8)}
    path = gguf_files.write(
        tmp_path / "whole.gguf", own, whole, lambda name: Type.I8 if whole[name].dtype == np.int8 else Type.F32
    )
    with pytest.raises(
        UserError, match=r"blk\.0\.attn_v\.weight is stored as I8, which the gguf package cannot dequantize"
    ):
        regard.load(path)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(
        UserError, match=r"small\.gguf needs the gguf package; install it with: pip install 'regard\[gguf\]'"
    ):
        regard.load(small)
