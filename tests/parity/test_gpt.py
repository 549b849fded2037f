"""GPT-2 and Llama: parity with transformers at odd sizes in both directions, their folders, and refusals."""

import json

import pytest
import torch
import transformers as hf
from helpers import causal
from helpers.causal import END, TEXTS
from helpers.inputs import inputs
from helpers.parity import ROWS, same_causal
from safetensors.torch import load_file, save_file

import regard
from regard.config.strategies import Beam, Greedy, OutputRules, Sample
from regard.decode.search.texts import without_incomplete
from regard.errors import UserError
from regard.families import gpt
from regard.files import read_json
from regard.formats.huggingface import gpt2, llama
from regard.formats.huggingface.causal import decode_from_generation, tokenizer
from regard.parts import slots
from regard.tasks.language.settings import LanguageDecode

# --- GPT-2 -----------------------------------------------------------------------------------------------------------


def test_older_weight_files(tmp_path):
    """Without the prefix, with the causal mask among the weights, the head left out or there as a copy."""
    path, theirs = causal.gpt2(tmp_path / "gpt2")
    config, state = read_json(path / "config.json"), theirs.state_dict()
    bare = {name.removeprefix("transformer."): tensor.clone() for name, tensor in state.items()}
    del bare["lm_head.weight"]
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 64, 64).tril() for i in range(3)}
    masks |= {f"h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(3)}
    for tensors in (bare, bare | masks, {name: tensor.clone() for name, tensor in state.items()}):
        save_file(tensors, path / "model.safetensors")
        same_causal(gpt2.FORMAT.read_model(path, config).model, theirs, ROWS[:2])
    halves = [dict(list(bare.items())[:9]), dict(list(bare.items())[9:])]
    (path / "model.safetensors").unlink()
    for number, half in enumerate(halves):
        save_file(half, path / f"model-{number}.safetensors")
    places = {name: f"model-{number}.safetensors" for number, half in enumerate(halves) for name in half}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    same_causal(gpt2.FORMAT.read_model(path, config).model, theirs, ROWS[:2])


# --- Llama -----------------------------------------------------------------------------------------------------------


def test_older_llama_configs(tmp_path):
    path, theirs = causal.llama(tmp_path / "llama", rope_parameters={"rope_type": "default", "rope_theta": 700.0})
    config = read_json(path / "config.json")
    older = {**config, "rope_theta": 700.0, "rope_scaling": None, "rope_parameters": None, "num_key_value_heads": None}
    del older["head_dim"]
    same_causal(llama.FORMAT.read_model(path, older).model, theirs, ROWS[:2])


# --- tokenizers ------------------------------------------------------------------------------------------------------


def test_tokens_equal_transformers(tmp_path):
    path, _ = causal.gpt2(tmp_path / "gpt2")
    ours = tokenizer(path, read_json(path / "config.json"))
    theirs = hf.AutoTokenizer.from_pretrained(path)
    assert ours.encode(TEXTS) == theirs(TEXTS, split_special_tokens=True).input_ids
    assert ours.decode(ours.encode(TEXTS)) == TEXTS
    assert ours.encode(TEXTS[:4]) == theirs(TEXTS[:4]).input_ids
    assert (ours.pad, ours.start, ours.end, ours.adds_start, ours.size) == (0, 0, 0, False, 300)
    assert ours.decode([[0, *ours.encode(["the cat"])[0], 0, 0]]) == ["the cat"]
    assert "".join(ours.tokens(ours.encode(["the old ü"])[0])).startswith("the▁old▁")
    assert ours.tokens([0, 299, 5000])[::2] == [END, "<5000>"] and ours.tokens(ours.encode(["日"])[0])[0] == "<e6>"
    whole = json.loads((path / "tokenizer.json").read_text())
    (path / "tokenizer.json").unlink()
    (path / "vocab.json").write_text(json.dumps(whole["model"]["vocab"]))
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in whole["model"]["merges"]]
    (path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    again = tokenizer(path, read_json(path / "config.json"))
    assert again.encode(TEXTS) == ours.encode(TEXTS) and again.decode(again.encode(TEXTS)) == TEXTS
    (path / "tokenizer_config.json").unlink()
    assert tokenizer(path, read_json(path / "config.json")).end == 0


def test_tokenizer_that_adds_start(tmp_path):
    path, _ = causal.llama(tmp_path / "llama")
    ours, theirs = tokenizer(path, {}), hf.AutoTokenizer.from_pretrained(path)
    assert [[ours.start, *ids] for ids in ours.encode(TEXTS)] == theirs(TEXTS, split_special_tokens=True).input_ids
    assert (ours.start, ours.end, ours.pad, ours.adds_start) == (0, 1, 1, True)
    assert ours.decode([[0, *ours.encode(["the cat"])[0], 1, 1], [1]]) == ["the cat", ""]
    other = tokenizer(causal.llama(tmp_path / "other", adds_start=False)[0], {})
    assert not other.adds_start
    with pytest.raises(UserError, match="half a surrogate pair"):
        ours.encode(["a", "\ud800"])


# --- what is refused -------------------------------------------------------------------------------------------------


def test_refused_configs(tmp_path):
    path, _ = causal.gpt2(tmp_path / "gpt2")
    config = read_json(path / "config.json")
    for change, words in (
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is true; regard reads gpt2 folders"),
        ({"add_cross_attention": True}, "add_cross_attention is true"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}; regard reads unquantized folders"),
        ({"activation_function": "mish"}, "activation_function is 'mish'; expected one of gelu, relu, gelu_new"),
        ({"n_head": 5}, "width 36 does not divide into 5 heads"),
        ({"n_embd": None}, "config.json has no 'n_embd'; fetch the folder again"),
        ({"n_embd": 72}, "'transformer.wte.weight' of the checkpoint has shape (300, 36)"),
    ):  # fmt: skip
        with pytest.raises(UserError) as error:
            gpt2.FORMAT.read_model(path, config | change)
        assert words in str(error.value) and "\n" not in str(error.value)
    del config["n_embd"]
    with pytest.raises(UserError, match="config.json has no 'n_embd'; fetch the folder again"):
        gpt2.FORMAT.read_model(path, config)
    path, _ = causal.llama(tmp_path / "llama")
    config = read_json(path / "config.json")
    for change, words in (
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "rope_parameters is {'rope_type': 'llama3'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling is {'type': 'linear'"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"use_sliding_window": True}, "use_sliding_window is true"),
        ({"head_dim": 7}, "rotary positions need an even width per head, not 7; use 8 (model.head_width)"),
        ({"num_key_value_heads": 4}, "6 heads cannot share 4 key heads evenly"),
        ({"attention_bias": True}, "the checkpoint has no 'model.layers.0.self_attn.q_proj.bias'"),
    ):
        with pytest.raises(UserError) as error:
            llama.FORMAT.read_model(path, config | change)
        assert words in str(error.value) and "\n" not in str(error.value)


def test_incomplete_folders(tmp_path):
    path, _ = causal.gpt2(tmp_path / "gpt2")
    config, whole = read_json(path / "config.json"), (path / "tokenizer.json").read_text()

    def refused(words):
        with pytest.raises(UserError) as error:
            tokenizer(path, config)
        assert words in str(error.value) and "\n" not in str(error.value)

    (path / "tokenizer.json").write_text(whole[:500])
    refused("is no complete tokenizer")
    (path / "tokenizer.json").write_text(whole)
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    refused("'<end>' of tokenizer_config.json is not in the vocabulary")
    (path / "tokenizer_config.json").write_text("{}")
    config["eos_token_id"] = None
    refused("does not name the token that ends a text; set eos_token")
    (path / "tokenizer.json").unlink()
    refused("has neither tokenizer.json nor vocab.json and merges.txt")
    (path / "vocab.json").write_text('{"a": 0}')
    (path / "merges.txt").write_text("a b\n")
    refused("are no byte-level vocabulary")
    tensors = load_file(path / "model.safetensors")
    save_file({**tensors, "score.weight": torch.zeros(2)}, path / "model.safetensors")
    with pytest.raises(UserError, match="1 tensors of the checkpoint have no place in the model: score.weight"):
        gpt2.FORMAT.read_model(path, config)
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(UserError, match="a pickle, which regard never opens.*GPT2LMHeadModel.from_pretrained"):
        gpt2.FORMAT.read_model(path, config)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({}, {"strategy": Greedy()}),
        ({"max_new_tokens": 7, "repetition_penalty": 1.2}, {"strategy": Greedy(), "max_tokens": 7, "repetition_penalty": 1.2}),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": None},
         {"strategy": Sample(temperature=0.6, top_p=0.9, top_k=50)}),
        ({"num_beams": 4, "early_stopping": True}, {"strategy": Beam(4, early_stopping="first")}),
        ({"num_beams": 4, "length_penalty": None}, {"strategy": Beam(4, early_stopping="heuristic")}),
        ({"num_beams": 4, "length_penalty": 0.0}, {"strategy": Beam(4, 1, 0.0, "heuristic")}),
        ({"no_repeat_ngram_size": 2, "num_beams": 1}, {"strategy": Greedy(), "rules": OutputRules(no_repeat_ngram_size=2)}),
    ],
)  # fmt: skip
def test_generation_settings(theirs, ours):
    assert LanguageDecode.model_validate(decode_from_generation(theirs)) == LanguageDecode(**ours)


@pytest.mark.parametrize(
    ("file", "said", "words"),
    [
        ("generation_config.json", {"do_sample": True, "temperature": 0.0}, "decode.strategy.sample.temperature is 0.0: Input should be greater"),
        ("generation_config.json", {"do_sample": True, "top_k": -1}, "decode.strategy.sample.top_k is -1: Input should be greater"),
        ("generation_config.json", {"max_new_tokens": "x"}, "max_new_tokens is 'x'; expected a whole number"),
        ("generation_config.json", [1], "does not hold an object"),
        ("tokenizer_config.json", 3, "does not hold an object"),
        ("config.json", [], "does not hold an object"),
    ],
)  # fmt: skip
def test_files_with_invalid_values(file, said, words, tmp_path):
    path, _ = causal.gpt2(tmp_path / "folder")
    before = json.loads((path / file).read_text())
    (path / file).write_text(json.dumps(before | said if isinstance(said, dict) else said))
    with pytest.raises(UserError) as error:
        regard.load(path)
    assert str(error.value).startswith(str(path / file)) and words in str(error.value) and "\n" not in str(error.value)


# --- the family itself -----------------------------------------------------------------------------------------------


def test_parameter_counts_of_sizes():
    """Parameters as transformers counts them, at GPT-2's vocabulary."""
    counts = {"gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200}
    for size, count in counts.items():
        with torch.device("meta"):
            model = gpt.Model(gpt.Config.model_validate({"size": size, "vocab": 50257, **gpt.SIZES[size]}))
        assert sum(each.numel() for each in model.parameters()) == count and model.context == 1024


def test_initial_values():
    c = gpt.Config.model_validate({"vocab": 500, "layers": 8, "width": 128, "heads": 4, "inner": 512, "tied": False})
    spread = {name: each.std().item() for name, each in gpt.Model(c).named_parameters() if each.dim() > 1}
    for name, found in spread.items():
        assert found == pytest.approx(0.005 if name.endswith(".out.weight") else 0.02, rel=0.1), name
    rest = {name: each for name, each in gpt.Model(c).named_parameters() if each.dim() == 1}
    assert all((each == ("norm.weight" in name)).all() for name, each in rest.items())


def test_dropout_positions():
    """Of the embedded tokens after positions, of each residual, and of attention weights; nothing else."""
    model = gpt.Model(
        gpt.Config(
            vocab=50,
            layers=1,
            width=32,
            heads=4,
            inner=64,
            dropout=0.25,
            attention=slots.Dense(dropout=0.5),
            head_dropout=0.3,
        )
    )
    found = {path: part.p for path, part in model.named_modules() if isinstance(part, torch.nn.Dropout) and part.p}
    layer = "stack.layers.0"
    assert found == {
        "dropout": 0.25,
        "head_dropout": 0.3,
        f"{layer}.attention_residual.dropout": 0.25,
        f"{layer}.feed_residual.dropout": 0.25,
    }
    assert model.stack.layers[0].attention.kernel.dropout == 0.5
    for each in model.parameters():
        each.data.zero_()
    model.embed.weight.data.fill_(1.0)
    model.stack.norm.weight.data.fill_(0.0)
    seen = []
    model.stack.layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model.train().decode(inputs(torch.zeros(8, 30, dtype=torch.long)))
    assert (seen[0] == 0).float().mean() == pytest.approx(0.25, abs=0.05)


@torch.no_grad()
@pytest.mark.parametrize("attention", [{"kind": "dense"}, {"kind": "window", "radius": 3}, {"kind": "favor", "features": 40},
                                       {"kind": "additive"}], ids=lambda each: each["kind"])  # fmt: skip
def test_grouped_heads_are_heads_with_the_same_keys(attention):
    """Copying every key head for its group makes an ordinary model of it, with the same numbers and a larger cache."""
    shape = {
        "vocab": 50,
        "width": 32,
        "heads": 4,
        "layers": 2,
        "inner": 64,
        "attention": attention,
        "positions": "rotary",
    }
    few = causal.loud(gpt.Model(gpt.Config.model_validate(shape | {"key_heads": 2})), 5.0)
    many = gpt.Model(gpt.Config.model_validate(shape)).eval()
    state = few.state_dict()
    for name, tensor in state.items():
        if ".key." in name or ".value." in name:
            heads = torch.unflatten(tensor, 0, (2, 8)).repeat_interleave(2, 0)
            state[name] = heads.flatten(0, 1)
    many.load_state_dict(state)
    tokens, real = causal.ragged([[5, 9, 31, 44, 3], [40, 41], [7]])
    assert (few(inputs(tokens, real)) - many(inputs(tokens, real)))[real].abs().max() < 1e-5
    assert (few(inputs(tokens)) - many(inputs(tokens))).abs().max() < 1e-5
    caches = few.start(None, 3), many.start(None, 3)
    for step in range(4):
        chunk, own = (tokens, real) if step == 0 else (torch.randint(50, (3, 1)), None)
        found, wanted = (model.step(chunk, cache, own) for model, cache in zip((few, many), caches, strict=True))
        assert (found - wanted)[real if step == 0 else ...].abs().max() < 1e-5
    sizes = [
        sum(each.numel() for each in vars(cache.layers[0]).values() if isinstance(each, torch.Tensor))
        for cache in caches
    ]
    assert sizes[1] == 2 * sizes[0]


@torch.no_grad()
def test_learned_positions_refuse_longer_texts():
    model = gpt.Model(
        gpt.Config.model_validate({"vocab": 50, **gpt.SIZES["tiny"], "positions": {"kind": "learned", "tokens": 9}})
    )
    model.eval()
    words = "a text of 10 tokens is longer than the 9 learned positions.*model.positions.tokens"
    tokens = torch.randint(50, (2, 10))
    assert model(inputs(tokens[:, :9])).shape == (2, 9, 50)
    with pytest.raises(ValueError, match=words):
        model(inputs(tokens))
    with pytest.raises(ValueError, match=words):
        model.step(tokens, model.start(None, 2))
    cache = model.start(None, 2)
    model.step(tokens[:, :8], cache)
    model.step(tokens[:, 8:9], cache)
    with pytest.raises(ValueError, match=words):
        model.step(tokens[:, 9:], cache)
    cache, real = model.start(None, 2), torch.tensor([[True] * 8, [True] * 3 + [False] * 5])
    model.step(tokens[:, :8], cache, real)
    for _ in range(4):  # the first row may have ended, and waits for the second
        model.step(tokens[:, :1], cache)
    assert (
        cache.tokens_read == 7
    )  # the device was asked once, when the first row was full; what the second has left is known
    wanted = model(inputs(torch.cat([tokens[1:, :3], tokens[1:, :1].repeat(1, 5)], 1)))[0, -1]
    assert (model.step(tokens[:, :1], cache)[1, 0] - wanted).abs().max() < 1e-5
    cache.select(torch.tensor([1]))
    model.step(tokens[1:, :1], cache)
    with pytest.raises(ValueError, match=words):
        model.step(tokens[1:, :1], cache)
    fixed = model.start(None, 2, capacity=16)
    for _ in range(12):
        assert model.step(tokens[:, :1], fixed).isfinite().all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"key_heads": 3}, "4 heads cannot share 3 key heads evenly; use a divisor (model.key_heads)"),
        ({"attention": {"kind": "window", "globals": 1}}, "model.attention.globals is 1, and global tokens attend to later ones"),
        ({"attention": "favor", "positions": "buckets"}, "model.attention.kind=favor has none; use rotary, learned"),
        ({"width": 130}, "width 130 does not divide into 4 heads; use 128 or 132 (model.width)"),
        ({"width": 132, "heads": 12, "positions": "rotary"}, "an even width per head, not 11"),
        ({"width": 33, "heads": 3, "positions": "sinusoid"}, "need an even width, not 33; use 34 (model.width)"),
    ],
)  # fmt: skip
def test_refused_settings(change, words):
    with pytest.raises(ValueError, match="Value error") as error:
        gpt.Config.model_validate({"vocab": 50, **gpt.SIZES["tiny"], **change})
    assert words in str(error.value)


# --- a folder in use -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@torch.no_grad()
def test_folder_generates_as_transformers(kind, tmp_path):
    """From its own tokenizer, with START where the folder puts it; batches are padded on the left there."""
    path, theirs = getattr(causal, kind)(tmp_path / kind)
    ours = regard.load(path, device="cpu", decode={"max_tokens": 8})
    text = hf.AutoTokenizer.from_pretrained(path, padding_side="left")
    text.pad_token = text.eos_token
    prompts = ["The cat sees", "the", "unseen wörds, 日本"]
    batch = text(prompts, return_tensors="pt", padding=True)
    made = theirs.generate(**batch, max_new_tokens=8, do_sample=False, pad_token_id=text.pad_token_id)
    new = made[:, batch.input_ids.size(1) :].tolist()
    said = text.batch_decode(new, skip_special_tokens=True)
    whole = [without_incomplete(each, ours.tokenizer, row) for each, row in zip(said, new, strict=True)]
    assert ours.predict(prompts) == whole and len(set(said)) == 3  # a character that the limit cut is left out
    assert [each["tokens"] for each in ours.predict(prompts, details=True)] == [
        ours.tokenizer.tokens(row) for row in new
    ]
    assert (ours.run.decode.strategy.kind, ours.run.decode.add_start) == ("greedy", kind == "llama")
    (found,) = ours.score([prompts[0]], details=True)
    ids = torch.tensor(
        [[ours.tokenizer.start, *text(prompts[0], add_special_tokens=False).input_ids, ours.tokenizer.end]]
    )
    logprobs = theirs(ids).logits[0, :-1].log_softmax(-1)
    assert found["logprobs"] == pytest.approx(logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist(), abs=1e-4)
