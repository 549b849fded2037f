"""PEFT folders: theirs load over our models with equal logits, ours load with peft over theirs; refusals."""

import io
import json
import re
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
import transformers as hf
from helpers import bert as folders
from helpers import causal, whisper
from helpers.inputs import inputs
from helpers.parity import change_config
from helpers.runs import tiny_run
from PIL import Image
from safetensors.torch import load_file, save_file
from test_clip import write_folder as clip_folder
from test_detr import BACKBONES, make_theirs
from test_t5 import folder as t5_folder
from test_vision_encoder_decoder import write_folder as captioner_folder
from test_vit import TRAINED, image
from test_vit import write_folder as vit_folder

import regard
from regard.adapt import tune
from regard.adapt.precision import Int8Linear
from regard.errors import UserError
from regard.formats.peft.processors import base_labels
from regard.parts import Inputs

pytestmark = pytest.mark.filterwarnings("ignore")
# peft 0.21 takes hold of a method that transformers 5 no longer has; only generation would call it.
if not hasattr(hf.T5ForConditionalGeneration, LOST := "_prepare_encoder_decoder_kwargs_for_generation"):
    setattr(hf.T5ForConditionalGeneration, LOST, None)
IDS = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(1))
NOISE = torch.Generator().manual_seed(1)
PIXELS, FRAMES = torch.rand(2, 3, 32, 32, generator=NOISE), torch.randn(2, 100, 80, generator=NOISE)
TEXTS = torch.cat([IDS % 20, torch.full((2, 1), 26)], 1)  # of the CLIP, whose END is 26
SCENES = torch.randn(2, 3, 64, 96, generator=NOISE)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("peft")


@pytest.fixture(scope="module")
def bases(home) -> dict[str, Path]:
    causal.gpt2(home / "gpt")
    causal.llama(home / "llama", num_key_value_heads=3)
    folders.folder(home / "bert", "BertForSequenceClassification", num_labels=3)
    t5_folder(home / "t5", tie_word_embeddings=False, feed_forward_proj="gated-gelu")
    vit_folder(home / "vit", "ViTForImageClassification", num_labels=3)
    make_theirs(BACKBONES["basic"]).save_pretrained(home / "detr")
    clip_folder(home / "clip")
    captioner_folder(home / "captioner", 48)
    whisper.write_folder(home / "whisper")
    return {name: home / name for name in THEIRS}


THEIRS = {
    "gpt": (hf.GPT2LMHeadModel, "CAUSAL_LM"),
    "llama": (hf.LlamaForCausalLM, "CAUSAL_LM"),
    "bert": (hf.BertForSequenceClassification, "SEQ_CLS"),
    "t5": (hf.T5ForConditionalGeneration, "SEQ_2_SEQ_LM"),
    "vit": (hf.ViTForImageClassification, None),
    "detr": (hf.DetrForObjectDetection, None),
    "clip": (hf.CLIPModel, None),
    "captioner": (hf.VisionEncoderDecoderModel, None),
    "whisper": (hf.WhisperForConditionalGeneration, None),
}
THEIR_INPUTS = {
    "t5": {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]},
    "vit": {"pixel_values": PIXELS},
    "detr": {"pixel_values": SCENES},
    "clip": {"pixel_values": PIXELS, "input_ids": TEXTS},
    "captioner": {"pixel_values": PIXELS, "decoder_input_ids": IDS},
    "whisper": {"input_features": FRAMES.transpose(1, 2), "decoder_input_ids": IDS},
}
INPUTS = {
    "t5": (inputs(IDS), inputs(IDS[:, :5])),
    "vit": (Inputs("pixels", PIXELS),),
    "detr": (Inputs("pixels", SCENES),),
    "clip": (Inputs("pixels", PIXELS), inputs(TEXTS)),
    "captioner": (Inputs("pixels", PIXELS), inputs(IDS)),
    "whisper": (Inputs("frames", FRAMES), inputs(IDS)),
}


@torch.no_grad()
def said_by(model, name: str) -> torch.Tensor:
    given = THEIR_INPUTS.get(name, {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)})
    output = model(**given)
    if name == "detr":
        return torch.cat([output.logits, output.pred_boxes], -1)
    logits = output.logits_per_image if name == "clip" else output.logits
    return logits[:, -IDS.size(1) :] if name in ("gpt", "llama") else logits  # without those of a prompt


@torch.no_grad()
def said_here(system, name: str) -> torch.Tensor:
    if name == "detr":
        detections = system.model.detect(*INPUTS[name])
        return torch.cat([detections.logits[-1], detections.boxes[-1]], -1)
    return system.model(*INPUTS.get(name, (inputs(IDS),)))


def theirs(base: Path, name: str, config, out: Path):
    """Their model, its adapter stirred and saved."""
    model = peft.get_peft_model(THEIRS[name][0].from_pretrained(base), config)
    torch.manual_seed(2)
    for each in model.parameters():
        if each.requires_grad:
            each.data += 0.2 * torch.randn_like(each)
    model.save_pretrained(out)
    return model.eval()


TARGETS = {
    "gpt": ["c_attn", "c_proj", "c_fc"],
    "llama": ["q_proj", "v_proj", "down_proj"],
    "bert": ["query", "dense"],
    "t5": ["q", "v", "wo"],
    "vit": ["q_proj", "o_proj", "fc1", "fc2"],
    "detr": ["v_proj", "o_proj", "fc1", "layers.2"],
    "clip": ["k_proj", "out_proj", "fc2", "visual_projection"],
    "whisper": ["q_proj", "k_proj", "out_proj", "fc1"],
    "captioner": ["c_attn", "q_attn", "c_proj", "fc1", "q_proj", "enc_to_dec_proj"],
}
WHOLE = {"vit": ["classifier"], "detr": ["class_labels_classifier"]}  # modules_to_save; PEFT knows that of a BERT  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
def test_lora_of_peft_round_trips(bases, home, name, tmp_path):
    kind = THEIRS[name][1]
    config = peft.LoraConfig(
        task_type=kind, r=4, lora_alpha=7, target_modules=TARGETS[name], modules_to_save=WHOLE.get(name)
    )
    model = theirs(bases[name], name, config, tmp_path / "lora")
    system = regard.load(bases[name], tune=tmp_path / "lora", device="cpu")
    plain = regard.load(bases[name], device="cpu")
    wanted = said_by(model, name)
    assert (said_here(system, name) - wanted).abs().max() < 1e-4
    assert (said_here(plain, name) - wanted).abs().max() > 1e-2
    assert system.run.tune.rank == 4 and system.run.tune.alpha == 7
    from regard.formats.peft import write as ours

    ours.write(system, tmp_path / "back", "fp32")
    again = peft.PeftModel.from_pretrained(THEIRS[name][0].from_pretrained(bases[name]), tmp_path / "back").eval()
    assert (said_by(again, name) - wanted).abs().max() < 1e-4
    first, second = (load_file(tmp_path / each / "adapter_model.safetensors") for each in ("lora", "back"))
    assert set(second) == set(first) and all(first[key].equal(second[key]) for key in second)
    assert ("base_model.model.classifier.weight" in first) == (name in ("bert", "vit"))


@pytest.mark.parametrize("name", TARGETS)
def test_lora_of_all_linear_layers(bases, name, tmp_path):
    """The encoder of a captioner has a pooler, which nothing reads."""
    model = theirs(bases[name], name, peft.LoraConfig(r=2, target_modules="all-linear"), tmp_path)
    wanted = said_by(model, name)
    assert (said_here(regard.load(bases[name], tune=tmp_path, device="cpu"), name) - wanted).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["vit", "captioner", "detr"])
def test_adapters_of_transformers_4_load(bases, name, tmp_path):
    """Their paths are those of the tensors in folders of models, which transformers 5 has renamed."""
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "fc1", "fc2"], modules_to_save=["o_proj"])
    model = theirs(bases[name], name, config, tmp_path)
    stored = load_file(bases[name] / "model.safetensors")
    state, older = THEIRS[name][0].from_pretrained(bases[name]).state_dict(), {}
    adapter = load_file(tmp_path / "adapter_model.safetensors")
    for key, tensor in adapter.items():
        module = re.sub(r"\.lora_.*|\.weight$|\.bias$", "", key.removeprefix("base_model.model."))
        weight = state[f"{module}.weight"]
        (old,) = [path for path, other in stored.items() if other.shape == weight.shape and other.equal(weight)]
        older[key.replace(module, old.removesuffix(".weight"))] = tensor
    assert older.keys() != adapter.keys()
    save_file(older, tmp_path / "adapter_model.safetensors")
    over = regard.load(bases[name], tune=tmp_path, device="cpu")
    assert (said_here(over, name) - said_by(model, name)).abs().max() < 1e-4


@pytest.mark.parametrize("pattern", [r"\.(query|value)$", "attention|feed", r"layers\.1\.(attention.key|feed.out)$"])
@pytest.mark.parametrize("name", TARGETS)
def test_our_lora_loads_with_peft(bases, name, pattern, tmp_path):
    """GPT-2's three maps in one: paths of their own stand in blocks."""
    from regard.config.tuning import Lora
    from regard.formats.peft import write as ours

    system = regard.load(bases[name], device="cpu")
    settings = Lora(rank=3, alpha=5.0, pattern=pattern)
    heads = {"bert": ("pooler", "classes"), "vit": ("classes",), "detr": ("classes",)}
    whole = [f"{head}.{part}" for head in heads.get(name, ()) for part in ("weight", "bias")]
    tune.attach(system.model, settings, whole)
    for each in system.model.parameters():
        if each.requires_grad:
            each.data += 0.2 * torch.randn_like(each)
    system.run = system.run.model_copy(update={"tune": settings, "start": str(bases[name])})
    ours.write(system, tmp_path / "ours", "fp32")
    model = THEIRS[name][0].from_pretrained(bases[name])
    again = peft.PeftModel.from_pretrained(model, tmp_path / "ours").eval()
    wanted = said_here(system, name)
    assert (said_by(again, name) - wanted).abs().max() < 1e-4
    assert (said_here(regard.load(bases[name], tune=tmp_path / "ours", device="cpu"), name) - wanted).abs().max() < 1e-4
    assert "read again, its logits are apart by" in ours.verify(system, tmp_path / "ours", "fp32")
    assert f"import {THEIRS[name][0].__name__}\n" in ours.usage(system)


@pytest.mark.parametrize(
    ("name", "kind"), [("gpt", "prompt"), ("gpt", "prefix"), ("llama", "prompt"), ("t5", "prompt")]
)
def test_prompts_and_prefixes(bases, name, kind, tmp_path):
    from regard.formats.peft import write as ours

    kinds = {"prompt": peft.PromptTuningConfig, "prefix": peft.PrefixTuningConfig}
    config = kinds[kind](task_type=THEIRS[name][1], num_virtual_tokens=5)
    model = theirs(bases[name], name, config, tmp_path / "theirs")
    system = regard.load(bases[name], tune=tmp_path / "theirs", device="cpu")
    wanted = said_by(model, name)
    assert (said_here(system, name) - wanted).abs().max() < 1e-4
    ours.write(system, tmp_path / "back", "fp32")
    again = peft.PeftModel.from_pretrained(THEIRS[name][0].from_pretrained(bases[name]), tmp_path / "back").eval()
    assert (said_by(again, name) - wanted).abs().max() < 1e-4
    if name != "t5":  # and it writes as it reads
        said = system.predict("the old", kind="greedy", max_tokens=5, details=True)
        assert said["logprob"] == pytest.approx(said["score"] * max(len(said["logprobs"]), 1), abs=1e-2)


def test_run_converts_to_peft(home, tmp_path, monkeypatch):
    from helpers import reads

    base = reads.stored_run("classify", train__steps=2)
    parts = {f"data.{name}": str(base.parent / f"{name}.txt") for name in ("train", "valid")}
    fine = {
        "train.steps": 5,
        "train.lr": 1e-2,
        "train.warmup": 1,
        "train.tensorboard": False,
        "device": "cpu",
        "start": str(base),
        "tune.kind": "lora",
    }
    system = regard.train("classify", {**fine, **parts}, out=tmp_path / "run")
    report = regard.convert(tmp_path / "run", out=tmp_path / "peft", to="peft")
    assert "read again, its logits are apart by" in report["checked"]
    assert "PeftModel.from_pretrained(base" in (tmp_path / "peft/README.md").read_text()
    regard.convert(base, out=tmp_path / "hf", to="huggingface")
    model = hf.BertForSequenceClassification.from_pretrained(tmp_path / "hf", num_labels=2)
    again = peft.PeftModel.from_pretrained(model, tmp_path / "peft").eval()
    assert (said_by(again, "bert") - said_here(system, "bert")).abs().max() < 1e-4
    over = regard.load(base, tune=tmp_path / "peft", device="cpu")
    texts = ["good day", "a bad house"]
    assert over.score(texts, ["glad"] * 2) == pytest.approx(system.score(texts, ["glad"] * 2), abs=1e-4)
    monkeypatch.setattr("regard.formats.peft.write._pad_rank", lambda x, rank, dim: 2 * x)
    with pytest.raises(RuntimeError, match="the folder gives logits that are apart by"):
        regard.convert(tmp_path / "run", out=tmp_path / "wrong", to="peft")
    monkeypatch.undo()
    monkeypatch.setattr("regard.formats.peft.read._load_heads", lambda *words: [])  # as if no head were in the folder
    with pytest.raises(RuntimeError, match="the folder gives logits that are apart by"):
        regard.convert(tmp_path / "run", out=tmp_path / "headless", to="peft")


def test_a_tuned_image_classifier_becomes_an_adapter(tmp_path):
    """Of a run with other labels and smaller images than its base."""
    rng, files = np.random.default_rng(1), {}
    for path in ("pets/cat", "pets/dog", "wild/lion", "wild/wolf"):
        for number in range(4):
            Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(file := io.BytesIO(), "png")
            files[f"{path}/{number}.png"] = file.getvalue()
    base = tiny_run("classify-image", files, **TRAINED, **{"data.train": "{files}/pets"})
    settings = {
        "start": str(base), "tune.kind": "lora", "data.train": str(base.parent / "wild"), "data.size": 24,
        "train.steps": 3, "train.warmup": 1, "train.lr": 0.05, "train.batch": 4, "train.tensorboard": False,
    }  # fmt: skip
    tuned = regard.train("classify-image", settings, out=tmp_path / "run")
    report = regard.convert(tmp_path / "run", out=tmp_path / "peft", to="peft")
    assert "read again, its logits are apart by" in report["checked"]
    over = regard.load(base, tune=tmp_path / "peft", device="cpu")
    assert over.labels.names == ["lion", "wolf"] and over.image.crop == 24
    assert over.score([image()], ["wolf"]) == pytest.approx(tuned.score([image()], ["wolf"]), abs=1e-5)
    regard.convert(base, out=tmp_path / "hf", to="huggingface")
    model = hf.ViTForImageClassification.from_pretrained(tmp_path / "hf")
    again = peft.PeftModel.from_pretrained(model, tmp_path / "peft").eval()
    assert (said_by(again, "vit") - said_here(tuned, "vit")).abs().max() < 1e-4
    assert (said_here(tuned, "vit") - said_here(regard.load(base), "vit")).abs().max() > 1e-3


def test_labels_that_the_base_renames_are_never_undone(tmp_path):
    from helpers import reads

    data = reads.write_texts(tmp_path / "train.txt", reads.labeled_examples(60, 0))
    fine = {"train.steps": 1, "train.tensorboard": False, "device": "cpu", "tune.kind": "lora", "data.train": str(data)}

    def exported(name, labels):
        """A base with these labels, and the PEFT folder of a run that learned glad and sad over it."""
        maps = {"id2label": dict(enumerate(labels)), "label2id": {each: i for i, each in enumerate(labels)}}
        base = folders.folder(tmp_path / name, "BertForSequenceClassification", **maps)
        regard.train("classify", {**fine, "start": str(base)}, out=tmp_path / f"{name} run")
        regard.convert(tmp_path / f"{name} run", out=tmp_path / f"{name} peft", to="peft")
        return base, tmp_path / f"{name} peft"

    def rename(base, *labels):
        change_config(base, id2label={str(i): each for i, each in enumerate(labels)})

    base, folder = exported("same", ["glad", "sad"])
    assert regard.load(base, tune=folder).labels.names == ["glad", "sad"]
    rename(base, "happy", "unhappy")
    assert regard.load(base, tune=folder).labels.names == ["happy", "unhappy"]
    assert regard.load(base, tune=folder).predict("so good") in ("happy", "unhappy")

    base, folder = exported("other", ["yes", "no"])  # the adapter has labels of its own
    assert regard.load(base, tune=folder).labels.names == ["glad", "sad"]
    rename(base, "happy", "unhappy")
    with pytest.raises(
        UserError, match=r"the base names its labels happy, unhappy \(before: yes, no\) and .* glad, sad"
    ):
        regard.load(base, tune=folder)
    rename(base, "glad", "sad")
    assert regard.load(base, tune=folder).labels.names == ["glad", "sad"]
    (folder / "base_labels.json").unlink()  # as in folders that were exported before
    rename(base, "a", "b")
    assert regard.load(base, tune=folder).labels.names == ["glad", "sad"]


def test_labels_of_a_base_that_detects(bases, tmp_path):
    """COCO names several ids N/A."""
    (tmp_path / "config.json").write_bytes((bases["detr"] / "config.json").read_bytes())
    change_config(tmp_path, id2label={str(i): name for i, name in enumerate(["N/A", "cat", "N/A", "dog", "N/A"])})
    assert base_labels(tmp_path) == ["N/A", "cat", "N/A 2", "dog", "N/A 4"]
    assert base_labels(bases["clip"]) == []


def test_heads_stay_exact_over_a_base_in_8_bits(bases, tmp_path):
    heads = ["pooler", "classifier"]
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query"], modules_to_save=heads)
    wanted = said_by(theirs(bases["bert"], "bert", config, tmp_path / "theirs"), "bert")
    whole, coarse = (
        regard.load(bases["bert"], tune=tmp_path / "theirs", device="cpu", precision=each) for each in ("fp32", "int8")
    )
    assert (said_here(whole, "bert") - wanted).abs().max() < 1e-4
    assert 0 < (said_here(coarse, "bert") - wanted).abs().max() < 0.05
    for name in ("weight", "bias"):
        assert getattr(coarse.model.pooler, name).equal(getattr(whole.model.pooler, name))
    assert isinstance(coarse.model.encoder.layers[0].attention.query, Int8Linear)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(bases, home) -> Path:
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query"])
    theirs(bases["bert"], "bert", config, home / "good")
    return home / "good"


@pytest.mark.parametrize(("change", "words"), [
    ({"use_dora": True}, "adapter_config.json sets use_dora=True, which regard does not read"),
    ({"rank_pattern": {"query": 2}}, "sets rank_pattern={'query': 2}, which regard does not read"),
    ({"bias": "all"}, "sets bias='all', which regard does not read"),
    ({"use_rslora": True}, "sets use_rslora=True"),
    ({"init_lora_weights": "pissa"}, "sets init_lora_weights='pissa'"),
    ({"something_new": 1}, "sets something_new=1"),
    ({"peft_type": "IA3"}, "has peft_type 'IA3'; regard reads LORA, PROMPT_TUNING, PREFIX_TUNING"),
    ({"peft_type": "PREFIX_TUNING"}, "PEFT has no equivalent of prefix for the family bert; expected lora (gpt"),
    ({"r": 0}, "has r=0 and lora_alpha=8; expected numbers above 0"),
    ({"r": True}, "has r=True and lora_alpha=8; expected numbers above 0"),
    ({"lora_alpha": float("nan")}, "has r=4 and lora_alpha=nan; expected numbers above 0"),
    ({"lora_alpha": 0}, "has r=4 and lora_alpha=0; expected numbers above 0"),
    ({"lora_dropout": 1.0}, "has lora_dropout=1.0; expected a number from 0 to less than 1"),
    ({"lora_dropout": "x"}, "has lora_dropout='x'; expected a number"),
    ({"peft_type": ["LORA"]}, "is no PEFT configuration"),
    ({"r": 3}, "lora_A of bert.encoder.layer.0.attention.self.query is (4, 36) and this base needs (3, 36)"),
])  # fmt: skip
def test_refused_fields(bases, good, tmp_path, change, words):
    config = json.loads((good / "adapter_config.json").read_text()) | change
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").write_bytes((good / "adapter_model.safetensors").read_bytes())
    with pytest.raises(UserError) as error:
        regard.load(bases["bert"], tune=tmp_path)
    assert words in str(error.value)


def test_refused_tensors(bases, good, home, tmp_path):
    (tmp_path / "adapter_config.json").write_bytes((good / "adapter_config.json").read_bytes())
    tensors = load_file(good / "adapter_model.safetensors")
    key = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_B.weight"

    def refused(words: str) -> None:
        with pytest.raises(UserError, match=words):
            regard.load(bases["bert"], tune=tmp_path)

    refused("has no weights; save it with peft as adapter_model.safetensors")
    (tmp_path / "adapter_model.bin").write_bytes(b"x")
    refused("has only adapter_model.bin, a pickle, which regard never opens")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    refused("is cut off or damaged")
    save_file({name: each for name, each in tensors.items() if name != key}, tmp_path / "adapter_model.safetensors")
    refused("has only one of lora_A and lora_B for bert.encoder.layer.0.attention.self.query")
    save_file({**tensors, "base_model.model.bert.other.weight": torch.zeros(2)}, tmp_path / "adapter_model.safetensors")
    refused("holds bert.other.weight, for which this base has no place")
    heads = {name: each for name, each in tensors.items() if "lora" not in name}
    save_file(heads, tmp_path / "adapter_model.safetensors")
    refused("has no LoRA for any layer of this model; use the base that it was trained on")
    with pytest.raises(UserError, match="for which this base has no place|has no LoRA for any layer"):
        regard.load(bases["gpt"], tune=good)


@pytest.mark.parametrize(("name", "target", "whole", "words"), [
    ("gpt", "c_attn", ["wte"], "has its own transformer.wte.weight, and this base has one table for input and output"),
    ("whisper", "q_proj", ["proj_out"], "holds proj_out.weight, for which this base has no place (of that shape); load it over a base"),
    ("whisper", "q_proj|.*conv2", None, "has LoRA for model.encoder.conv2; expected linear layers of this base, each"),
    ("whisper", "v_proj|.*embed_tokens", None, "has LoRA for model.decoder.embed_tokens; expected linear layers"),
    ("vit", "fc1|.*projection", None, "has LoRA for vit.embeddings.patch_embeddings.projection; expected linear"),
    ("detr", "fc1|.*input_projection", None, "has LoRA for model.input_projection; expected linear layers of this"),
    ("clip", "fc1", ["position_embedding"], "holds vision_model.embeddings.position_embedding.weight, for which this"),
])  # fmt: skip
def test_tensors_without_a_place(bases, name, target, whole, words, tmp_path):
    config = peft.LoraConfig(r=2, target_modules=f".*({target})", modules_to_save=whole)
    theirs(bases[name], name, config, tmp_path)
    with pytest.raises(UserError) as error:
        regard.load(bases[name], tune=tmp_path)
    assert words in str(error.value)


def test_refused_prompts(bases, tmp_path):
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5)
    theirs(bases["gpt"], "gpt", config, tmp_path)
    save_file({"prompt_embeddings": torch.zeros(5, 35)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(
        UserError, match="prompt_embeddings is 35 wide and this base needs 36; use the base that it was trained on"
    ):
        regard.load(bases["gpt"], tune=tmp_path)
    save_file({"other": torch.zeros(5, 35)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(UserError, match="holds other; expected prompt_embeddings alone"):
        regard.load(bases["gpt"], tune=tmp_path)


def test_kinds_without_an_equivalent(tmp_path, home):
    from helpers import reads

    base = reads.stored_run("classify", train__steps=2)
    parts = {"data.train": str(base.parent / "train.txt"), "start": str(base), "tune.kind": "prompt", "train.steps": 1}
    regard.train("classify", {**parts, "train.tensorboard": False, "device": "cpu"}, out=tmp_path / "run")
    with pytest.raises(UserError, match="PEFT has no equivalent of prompt for the family bert"):
        regard.convert(tmp_path / "run", out=tmp_path / "x", to="peft")
    with pytest.raises(UserError, match="is not tuned; --to peft writes adapters"):
        regard.convert(base, out=tmp_path / "x", to="peft")
