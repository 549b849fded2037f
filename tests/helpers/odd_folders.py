"""Random folders of transformers with odd but valid settings. regard gives the outputs of transformers, or refuses the
folder and names the setting.

`PYTHONPATH=.:tests python -m helpers.odd_folders 0 400` counts both for these seeds.
"""

import json
import random
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from helpers import bert, captioner, causal, clips, long, marian, t5, whisper
from helpers.inputs import inputs
from PIL import Image
from prototypes.checks import loud, ragged
from safetensors.torch import load_file, save_file
from torch import Tensor

import regard
from regard.errors import UserError
from regard.parts import Inputs
from regard.processors.image.processor import ImageProcessor

BOUND = 1e-4  # of the largest output
Settings = dict[str, Any]
ACTS = [
    "relu",
    "gelu_new",
    "silu",
    "swish",
    "gelu_python",
    "gelu_fast",
    "quick_gelu",
    "gelu_pytorch_tanh",
    "mish",
    "tanh",
]
EPSILONS = [1e-3, 1e-6]
LABELS = [1, 2, 9]
PROBLEMS = ["regression", "multi_label_classification", "single_label_classification"]
ENCODERS = ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"]
PROCESSORS: dict[str, list[Any]] = {  # of preprocessor_config.json; None: the key is absent
    "image_processor_type": [*["ViTImageProcessor", "CLIPImageProcessor",  "DeiTImageProcessor",
                               "BitImageProcessor", "SiglipImageProcessor"] * 2,
                             "ConvNextImageProcessor", "EfficientNetImageProcessor"],
    "size": [40, {"shortest_edge": 36}, {"height": 32, "width": 32}, {"height": 40, "width": 36}],
    "resample": [0, 1, 2, 3],
    "do_center_crop": [True, False], "crop_size": [{"height": 32, "width": 32}, 32],
    "do_resize": [True, False], "do_rescale": [True, False], "rescale_factor": [1 / 127.5, 1 / 255],
    "do_normalize": [True, False], "image_mean": [[0.4, 0.5, 0.6]], "image_std": [[0.2, 0.3, 0.25]],
    "do_convert_rgb": [True, False],
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A model type: the odd values of its settings, how to write a folder, and how to compare it."""

    settings: dict[str, list[Any]]
    write: Callable[[Path, Settings], None]
    compare: Callable[[Any, Path, Settings], None]
    processor: bool = False  # its folders have a preprocessor_config.json


@dataclass(frozen=True)
class OddFolder:
    """What is odd about a folder: its settings, its image processor, its files."""

    family: str
    settings: Settings
    processor: Settings
    files: tuple[str, ...]

    @property
    def names(self) -> set[str]:
        """The words of which a refusal must have one."""
        words = {*self.settings, *self.processor, *self.files}
        values = [*self.settings.values(), *self.processor.values()]
        return words | {value for value in values if isinstance(value, str)} | {
            key for value in values if isinstance(value, dict) for key in value
        }  # fmt: skip


def near(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    error = (ours - theirs).abs().max().item() / max(1.0, theirs.abs().max().item())
    assert error <= BOUND, f"{error:.1e} > {BOUND:.0e}"


def picture(seed: int = 1, width: int = 44, height: int = 52, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 4), np.uint8)
    return Image.fromarray(pixels, "RGBA").convert(mode)


# --- texts -----------------------------------------------------------------------------------------------------------


def architecture(path: Path) -> str:
    name: str = json.loads((path / "config.json").read_text())["architectures"][0]
    return name


def write_encoder(prefix: str, folder: Callable[..., Any]) -> Callable[[Path, Settings], None]:
    def write(path: Path, settings: Settings) -> None:
        rest = dict(settings)
        folder(path, prefix + rest.pop("class", "Model"), **rest)

    return write


@torch.no_grad()
def compare_encoder(ours: Any, path: Path, settings: Settings) -> None:
    theirs = loaded(path)
    torch.manual_seed(3)
    length, pad = 24, theirs.config.pad_token_id
    valid = torch.ones(2, length, dtype=torch.bool)
    if not theirs.config.model_type.startswith("big"):  # its padding depends on the block
        valid = ragged([length, 15])
    ids = torch.randint(5, ours.model.embed.num_embeddings, (2, length)).masked_fill(~valid, pad or 0)
    outputs = theirs(ids, attention_mask=valid.long())
    encoded = ours.model.encode(inputs(ids, valid))
    if "last_hidden_state" in outputs:
        near(encoded.states[valid], outputs.last_hidden_state[valid])
    elif "Classification" in type(theirs).__name__:
        places = valid if "Token" in type(theirs).__name__ else slice(None)
        near(ours.model.label_logits(encoded)[places], outputs.logits[places])
    elif "NextSentence" in type(theirs).__name__:
        near(ours.model.next_sentence_logits(encoded), outputs.logits)
    elif "PreTraining" in type(theirs).__name__:
        near(ours.model.next_sentence_logits(encoded), outputs.seq_relationship_logits)
        near(ours.model.logits(encoded.states)[valid], outputs.prediction_logits[valid])
    else:
        near(ours.model.logits(encoded.states)[valid], outputs.logits[valid])


@torch.no_grad()
def compare_causal(ours: Any, path: Path, settings: Settings) -> None:
    theirs = loaded(path)
    tokens, valid = causal.ragged([[5, 9, 31, 77, 3, 250, 12, 8, 99], [40, 41]])
    near(ours.model(inputs(tokens, valid))[valid], theirs(tokens, attention_mask=valid.long()).logits[valid])
    rows = [[5, 9, 31], [40, 41]]
    theirs.generation_config = hf.GenerationConfig()
    assert causal.greedy(ours.model, rows, 8, end=1) == causal.generated(theirs, rows, 8, end=1)


@torch.no_grad()
def compare_translation(ours: Any, path: Path, settings: Settings) -> None:
    theirs = loaded(path)
    torch.manual_seed(3)
    source, target, valid = torch.randint(4, 60, (2, 13)), torch.randint(4, 60, (2, 9)), ragged([13, 6])
    wanted = theirs(input_ids=source, attention_mask=valid.long(), decoder_input_ids=target).logits
    near(ours.model(inputs(source, valid), inputs(target)), wanted)
    if theirs.config.num_hidden_layers < getattr(theirs.config, "num_decoder_layers", 0):
        return  # transformers cannot generate with a decoder that is deeper than its encoder
    tokenizer, texts = hf.AutoTokenizer.from_pretrained(path), marian.sentences(3, seed=7)
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    written = theirs.generate(**batch, num_beams=1, max_new_tokens=9)
    expected = [text.replace(" ", "") for text in tokenizer.batch_decode(written, skip_special_tokens=True)]
    found = ours.predict(texts, kind="greedy", max_tokens=9)
    assert [re.sub(r"<extra_id_\d+>| ", "", text) for text in found] == expected  # theirs leave out T5's sentinels


def loaded(path: Path) -> Any:
    """Their model in fp32; of several classes the first of `architectures`, which a copy of the folder still has."""
    name = json.loads((path / "wanted.json").read_text())
    return getattr(hf, name).from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


def write_gpt2(path: Path, settings: Settings) -> None:
    causal.gpt2(path, **settings)


def write_llama(kind: str) -> Callable[[Path, Settings], None]:
    def write(path: Path, settings: Settings) -> None:
        causal.llama(path, kind, **{"num_key_value_heads": 3} | settings)

    return write


def write_t5(path: Path, settings: Settings) -> None:
    t5.make_folder(path, taught=False, **{"tie_word_embeddings": True} | settings)


def write_marian(path: Path, settings: Settings) -> None:
    marian.make_folder(path, separate=False, taught=False, **settings)


# --- images and sound ------------------------------------------------------------------------------------------------

TOWER = {"hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 50}
SQUARE = {"height": 32, "width": 32}
VIT = TOWER | {"image_size": 32, "patch_size": 8}
CONVOLUTIONS = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "out_features": ["stage2"]}
DETR = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_queries": 7, "num_labels": 5,
}  # fmt: skip


def channels_of(settings: Settings) -> int:
    parts = (settings, settings.get("vision_config", {}), settings.get("encoder", {}))
    return next((part["num_channels"] for part in parts if "num_channels" in part), 3)


def mode_of(settings: Settings) -> str:
    return {1: "L", 3: "RGB", 4: "RGBA"}[channels_of(settings)]


def write_vit(path: Path, settings: Settings) -> None:
    rest = dict(settings)
    name = "ViT" + rest.pop("class", "ForImageClassification")
    model = loud(getattr(hf, name)(hf.ViTConfig(**VIT | rest)))
    model.save_pretrained(path)


def read_pixels(path: Path, images: list[Image.Image]) -> Settings:
    processor: Any = hf.AutoImageProcessor.from_pretrained(path, backend="pil")
    return dict(processor(images, return_tensors="pt"))


def compare_images(ours: Any, path: Path, settings: Settings) -> list[tuple[Inputs, Tensor]]:
    """Compare the pixels of two images of other sizes; return our batches of one image beside theirs."""
    processor = next(each for each in ours.processors.values() if isinstance(each, ImageProcessor))
    batches = []
    for image in (picture(mode=mode_of(settings)), picture(2, 60, 40, mode_of(settings))):
        wanted, found = read_pixels(path, [image])["pixel_values"], processor.encode(image)
        near(torch.from_numpy(found)[None], wanted)
        batches.append((processor.collate([found]), wanted))
    return batches


def random_pixels(settings: Settings, sides: int | list[int]) -> Tensor:
    height, width = (sides, sides) if isinstance(sides, int) else sides
    return torch.randn(2, channels_of(settings), height, width, generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def compare_vit(ours: Any, path: Path, settings: Settings) -> None:
    theirs, size = loaded(path), settings.get("image_size", 32)
    pixels = random_pixels(settings, size)
    batches = [
        (read, wanted) for read, wanted in compare_images(ours, path, settings) if wanted.shape == pixels[:1].shape
    ]
    for read, given in [(Inputs("pixels", pixels), pixels), *batches]:
        wanted, encoded = theirs(given), ours.model.encode(read)
        if "last_hidden_state" in wanted:
            near(encoded.states, wanted.last_hidden_state)
            near(ours.model.pool(encoded), wanted.pooler_output)
        else:
            near(ours.model.label_logits(encoded), wanted.logits)


def write_detr(path: Path, settings: Settings) -> None:
    channels = {"num_channels": settings.get("num_channels", 3)}
    backbone = hf.ResNetConfig(**CONVOLUTIONS, **channels)
    model = loud(hf.DetrForObjectDetection(hf.DetrConfig(
        use_timm_backbone=False, backbone_config=backbone, **DETR | settings
    )), 1.0)  # fmt: skip
    model.save_pretrained(path)


@torch.no_grad()
def compare_detr(ours: Any, path: Path, settings: Settings) -> None:
    processor, mode = ours.image, mode_of(settings)
    images = [picture(mode=mode), picture(2, 60, 40, mode)]
    about = path / "preprocessor_config.json"
    together = not about.is_file() or json.loads(about.read_text()).get("do_pad", True)
    for batch in [images] if together else [[image] for image in images]:
        read, wanted = processor.collate([processor.encode(image) for image in batch]), read_pixels(path, batch)
        valid = torch.ones_like(wanted["pixel_values"][:, 0]).bool() if read.valid is None else read.valid
        assert not together or valid.equal(wanted["pixel_mask"].bool())
        near(read.values * valid[:, None], wanted["pixel_values"] * valid[:, None])
    pixels, valid = random_pixels(settings, [44, 52]), torch.ones(2, 44, 52, dtype=torch.bool)
    valid[1, 30:] = False
    theirs: Any = loaded(path)
    for image in images:
        boxes: Any = hf.AutoImageProcessor.from_pretrained(path, backend="pil")
        (wanted,) = boxes.post_process_object_detection(
            theirs(**read_pixels(path, [image])), 0.0, [(image.height, image.width)]
        )
        scores = torch.tensor([one.score for one in ours.predict(image, threshold=0.0).objects])
        near(scores, wanted["scores"].sort(descending=True).values)
    wanted = theirs(pixels, pixel_mask=valid.long())
    found = ours.model.detect(Inputs("pixels", pixels, valid))
    near(found.logits[-1], wanted.logits)
    near(found.boxes[-1], wanted.pred_boxes)


def write_captioner(path: Path, settings: Settings) -> None:
    captioner.write_folder(path, **settings)


@torch.no_grad()
def compare_captioner(ours: Any, path: Path, settings: Settings) -> None:
    theirs, encoder = loaded(path), settings.get("encoder", {})
    pixels, tokens = random_pixels(encoder, encoder.get("image_size", 32)), torch.randint(300, (2, 9))
    given = [wanted for _, wanted in compare_images(ours, path, encoder) if wanted.shape == pixels[:1].shape]
    for images in (pixels, *given):
        wanted = theirs(pixel_values=images, decoder_input_ids=tokens[: len(images)]).logits
        near(ours.model(Inputs("pixels", images), Inputs("tokens", tokens[: len(images)])), wanted)
    items = [picture(mode=mode_of(encoder)), picture(2, 60, 40, mode_of(encoder))]
    if given:
        written = theirs.generate(torch.cat(given), num_beams=1, max_new_tokens=9)
        texts = hf.AutoTokenizer.from_pretrained(path).batch_decode(written, skip_special_tokens=True)
        ended = [text.rstrip("\ufffd") for text in ours.predict(items, kind="greedy", max_tokens=9)]
        assert ended == [text.rstrip("\ufffd") for text in texts]


def write_clip(path: Path, settings: Settings) -> None:
    clips.write_folder(path, **settings)


@torch.no_grad()
def compare_clip(ours: Any, path: Path, settings: Settings) -> None:
    theirs = loaded(path)
    pixels = random_pixels(settings, theirs.config.vision_config.image_size)
    batches = [
        (read, wanted) for read, wanted in compare_images(ours, path, settings) if wanted.shape == pixels[:1].shape
    ]
    tokens = hf.AutoTokenizer.from_pretrained(path)(clips.TEXTS, return_tensors="pt", padding=True)
    text = Inputs("tokens", tokens["input_ids"], tokens["attention_mask"].bool())
    for read, given in [(Inputs("pixels", pixels), pixels), *batches]:
        wanted = theirs(**tokens, pixel_values=given)
        near(ours.model(read, text), wanted.logits_per_image)
    near(ours.embed(clips.TEXTS), wanted.text_embeds)


def write_whisper(path: Path, settings: Settings) -> None:
    rest = dict(settings)
    generation = rest.pop("generation", {})
    whisper.write_folder(path, **rest)
    about = path / "generation_config.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | generation))


@torch.no_grad()
def compare_whisper(ours: Any, path: Path, settings: Settings) -> None:
    theirs, extractor = loaded(path), hf.WhisperFeatureExtractor.from_pretrained(path)
    sound = np.random.default_rng(1).normal(0, 0.1, 12000).astype(np.float32)
    frames = extractor(sound, sampling_rate=16000, return_tensors="pt")["input_features"]
    target = torch.randint(5, whisper.VOCAB, (1, 7), generator=torch.Generator().manual_seed(1))
    found = ours.model(Inputs("frames", frames.transpose(1, 2)), inputs(target))
    near(found, theirs(input_features=frames, decoder_input_ids=target).logits)


# --- the table -------------------------------------------------------------------------------------------------------

TEXT_SETTINGS: dict[str, list[Any]] = {
    "class": ENCODERS, "hidden_act": ACTS, "layer_norm_eps": EPSILONS, "tie_word_embeddings": [False],
    "num_labels": LABELS, "problem_type": PROBLEMS, "num_hidden_layers": [1], "intermediate_size": [7],
    "num_attention_heads": [1, 9], "pad_token_id": [0, 3], "hidden_dropout_prob": [0.3], "classifier_dropout": [0.2],
}  # fmt: skip
ROPES = [
    {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
    {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 500.0},
    {"rope_type": "yarn", "factor": 2.0, "rope_theta": 500.0, "original_max_position_embeddings": 32},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 500.0,
     "original_max_position_embeddings": 32},
]  # fmt: skip
LLAMA_SETTINGS: dict[str, list[Any]] = {
    "hidden_act": ["gelu", "gelu_pytorch_tanh", "swish", "relu"], "num_key_value_heads": [1, 2, 3], "head_dim": [8, 10],
    "rms_norm_eps": EPSILONS, "tie_word_embeddings": [True], "rope_parameters": ROPES, "num_hidden_layers": [1],
    "max_position_embeddings": [48], "attention_dropout": [0.2], "intermediate_size": [7],
}  # fmt: skip
FAMILIES: dict[str, Family] = {
    "bert": Family(
        TEXT_SETTINGS | {"class": [*ENCODERS, "ForPreTraining", "ForNextSentencePrediction"],
                         "type_vocab_size": [1, 5], "is_decoder": [True], "chunk_size_feed_forward": [2],
                         "position_embedding_type": ["relative_key"], "max_position_embeddings": [24]},
        write_encoder("Bert", bert.folder), compare_encoder),
    "longformer": Family(
        TEXT_SETTINGS | {"pad_token_id": [1], "attention_window": [4, [4, 8, 4]]},
        write_encoder("Longformer", long.longformer), compare_encoder),
    "bigbird": Family(
        TEXT_SETTINGS | {"attention_type": ["original_full"], "rescale_embeddings": [True], "use_bias": [False],
                         "block_size": [3], "num_random_blocks": [1], "norm_type": ["layer_norm"]},
        write_encoder("BigBird", long.bigbird), compare_encoder),
    "gpt2": Family(
        {"activation_function": ACTS, "n_inner": [7, 50], "scale_attn_weights": [False], "n_positions": [16],
         "scale_attn_by_inverse_layer_idx": [True], "reorder_and_upcast_attn": [True], "tie_word_embeddings": [False],
         "layer_norm_epsilon": EPSILONS, "n_layer": [1], "n_head": [1, 9], "embd_pdrop": [0.4], "add_cross_attention": [True]},
        write_gpt2, compare_causal),
    "llama": Family(
        LLAMA_SETTINGS | {"attention_bias": [True], "mlp_bias": [True], "pretraining_tp": [2]},
        write_llama("llama"), compare_causal),
    "mistral": Family(LLAMA_SETTINGS | {"sliding_window": [None, 3, 100]}, write_llama("mistral"), compare_causal),
    "qwen2": Family(
        LLAMA_SETTINGS | {"use_sliding_window": [True], "sliding_window": [4], "max_window_layers": [0, 2]},
        write_llama("qwen2"), compare_causal),
    "t5": Family(
        {"feed_forward_proj": ["gated-gelu", "gated-silu", "gelu_new", "silu", "gated-relu"], "layer_norm_epsilon": EPSILONS,
         "tie_word_embeddings": [False], "relative_attention_num_buckets": [6], "relative_attention_max_distance": [9],
         "num_decoder_layers": [1], "num_layers": [1], "d_kv": [4], "num_heads": [1], "d_ff": [7], "dropout_rate": [0.4]},
        write_t5, compare_translation),
    "marian": Family(
        {"activation_function": ACTS, "scale_embedding": [False], "encoder_layers": [1], "decoder_layers": [1],
         "decoder_attention_heads": [4], "encoder_ffn_dim": [7], "decoder_ffn_dim": [9], "dropout": [0.4], "static_position_embeddings": [True],
         "max_position_embeddings": [100]},
        write_marian, compare_translation),
    "vit": Family(
        {"class": ["Model", "ForImageClassification"], "hidden_act": ACTS, "image_size": [30, [32, 48]], "patch_size": [4, 16],
         "num_channels": [1, 4], "qkv_bias": [False], "layer_norm_eps": EPSILONS, "num_labels": LABELS, "problem_type": PROBLEMS,
         "num_hidden_layers": [1], "encoder_stride": [8], "pooler_act": ["gelu"], "pooler_output_size": [20]},
        write_vit, compare_vit, True),
    "detr": Family(
        {"num_queries": [3, 130], "auxiliary_loss": [True], "num_channels": [1, 4], "activation_function": ACTS, "encoder_layers": [2],
         "decoder_layers": [1], "position_embedding_type": ["learned"], "dilation": [True], "scale_embedding": [True],
         "num_labels": [1, 30], "init_std": [0.1], "encoder_layerdrop": [0.2]},
        write_detr, compare_detr, True),
    "clip": Family(
        {"projection_dim": [8, 40], "vision_config": [{"num_channels": 1}, {"num_channels": 4}, {"image_size": 40}, {"image_size": 30}, {"hidden_act": "swish"},
         {"patch_size": 16}, {"layer_norm_eps": 1e-3}], "text_config": [{"hidden_act": "gelu_python"}, {"num_hidden_layers": 1}, {"layer_norm_eps": 1e-3}],
         "logit_scale_init_value": [1.0]},
        write_clip, compare_clip, True),
    "vision-encoder-decoder": Family(
        {"encoder": [{"num_channels": 1}, {"num_channels": 4}, {"image_size": 30}, {"hidden_act": "gelu_python"},
                     {"image_size": 40}, {"image_size": [32, 48]}, {"qkv_bias": False}, {"layer_norm_eps": 1e-3},
                     {"pooler_act": "gelu"}],
         "decoder": [{"activation_function": "swish"}, {"activation_function": "mish"}, {"n_inner": 7}, {"n_layer": 1},
                     {"tie_word_embeddings": False}, {"scale_attn_weights": False}, {"layer_norm_epsilon": 1e-3},
                     {"reorder_and_upcast_attn": True}, {"scale_attn_by_inverse_layer_idx": True}],
         "width": [48], "num_beams": [2], "max_new_tokens": [5]},
        write_captioner, compare_captioner, True),
    "whisper": Family(
        {"activation_function": ACTS, "encoder_layers": [1], "decoder_layers": [1], "num_mel_bins": [128], "scale_embedding": [True],
         "encoder_attention_heads": [2], "decoder_attention_heads": [8], "encoder_ffn_dim": [24], "decoder_ffn_dim": [24],
         "max_target_positions": [20], "use_weighted_layer_sum": [True], "encoder_layerdrop": [0.3], "generation": [
             {"alignment_heads": [[7, 7]]}, {"num_beams": 2}, {"return_timestamps": True}, {"forced_decoder_ids": [[1, 3], [2, 4]]}]},
        write_whisper, compare_whisper),
}  # fmt: skip
DETECTOR: dict[str, list[Any]] = PROCESSORS | {
    "image_processor_type": [*["DetrImageProcessor"] * 4, "YolosImageProcessor"],
    "size": [{"shortest_edge": 40, "longest_edge": 50}, {"height": 40, "width": 48}, {"max_height": 40, "max_width": 44}, 40],
    "do_center_crop": [None], "crop_size": [None], "do_pad": [True, False], "pad_size": [{"height": 80, "width": 90}],
    "do_convert_rgb": [None],
}  # fmt: skip


# --- files -----------------------------------------------------------------------------------------------------------


def change_json(path: Path, change: Callable[[Settings], object]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def half_weights(path: Path) -> None:
    weights = load_file(path / "model.safetensors")
    halves = {name: x.half() if x.is_floating_point() else x for name, x in weights.items()}
    save_file(halves, path / "model.safetensors", {"format": "pt"})


def stale_index(path: Path) -> None:
    about = {"metadata": {}, "weight_map": {"embeddings.weight": "model-00001-of-00002.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(about))


def move_towers(config: Settings) -> None:
    """The towers of a config.json as old versions wrote it, where the settings in `*_config_dict` hold."""
    for tower in ("text", "vision"):
        config[f"{tower}_config_dict"] = config[f"{tower}_config"]
        config[f"{tower}_config"] = {"num_hidden_layers": 5}


def shift_positions(path: Path) -> None:
    """Positions of a Whisper encoder that fine-tuning has changed."""
    weights = load_file(path / "model.safetensors")
    weights["model.encoder.embed_positions.weight"] += 0.1
    save_file(weights, path / "model.safetensors", {"format": "pt"})


def without(key: str) -> Callable[[Path], None]:
    return lambda path: change_json(path / "config.json", lambda values: values.pop(key))


FILES: dict[str, Callable[[Path], None]] = {
    "float16": half_weights,
    "index": stale_index,
    "architectures": without("architectures"),
    "model_type": without("model_type"),
    "unknown_key": lambda path: change_json(path / "config.json", lambda values: values.update(unknown_key=3)),
}
MEDIA_FILES: dict[str, dict[str, Callable[[Path], None]]] = {
    "clip": {"text_config_dict": lambda path: change_json(path / "config.json", move_towers)},
    "whisper": {"embed_positions": lambda path: shift_positions(path)},
}
READABLE = {"float16", "index", "unknown_key", *MEDIA_FILES["clip"], *MEDIA_FILES["whisper"]}  # must be read


def files_of(family: str) -> dict[str, Callable[[Path], None]]:
    return FILES | MEDIA_FILES.get(family, {})


# --- drawing and checking --------------------------------------------------------------------------------------------


def processors_of(name: str) -> dict[str, list[Any]]:
    if not FAMILIES[name].processor:
        return {}
    return DETECTOR if name == "detr" else PROCESSORS


def scaling(settings: Settings) -> Settings:
    """The keys that a processor needs for images that are not RGB."""
    if (channels := channels_of(settings)) == 3:
        return {}
    return {"image_mean": [0.4] * channels, "image_std": [0.3] * channels, "do_convert_rgb": False}


def single_values(name: str) -> Iterator[OddFolder]:
    """Folders with one odd setting, one odd setting of the processor, or one odd file: every value of the tables."""
    family, table = FAMILIES[name], processors_of(name)
    plain = {"image_processor_type": table["image_processor_type"][0], "size": SQUARE} if table else {}
    labeled = {"class": "ForSequenceClassification"} if "problem_type" in family.settings and not table else {}
    for key, values in family.settings.items():
        for value in values:
            settings = (labeled if key in ("num_labels", "problem_type") else {}) | {key: value}
            yield OddFolder(name, settings, plain | scaling(settings) if table else {}, ())
    for key, values in table.items():
        yield from (OddFolder(name, {}, plain | {key: value}, ()) for value in values if value is not None)
    yield from (OddFolder(name, {}, plain, (file,)) for file in files_of(name))


def draw(rng: random.Random, name: str) -> OddFolder:
    """One to three odd settings; of media models also odd settings of the processor; sometimes odd files."""
    family, table = FAMILIES[name], processors_of(name)
    keys = rng.sample(sorted(family.settings), rng.randint(0 if family.processor else 1, 3))
    settings = {key: rng.choice(family.settings[key]) for key in keys}
    processor: Settings = {}
    if table:
        keys = ["image_processor_type", *rng.sample(sorted(table), rng.randint(0, 5))]
        processor = {key: value for key in keys if (value := rng.choice(table[key])) is not None}
        processor |= scaling(settings)
    files = (rng.choice(sorted(files_of(name))),) if rng.random() < 0.3 else ()
    return OddFolder(name, settings, processor, files)


def write(odd: OddFolder, path: Path) -> bool:
    """Write the folder; False: transformers itself cannot, or cannot read it again."""
    family = FAMILIES[odd.family]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            family.write(path, odd.settings)
            (path / "wanted.json").write_text(json.dumps(architecture(path)))
            if odd.processor:
                (path / "preprocessor_config.json").write_text(json.dumps(odd.processor))
            loaded(path)
            if odd.processor:
                read_pixels(path, [picture(mode=mode_of(odd.settings))])
    except Exception:
        return False
    for name in odd.files:
        files_of(odd.family)[name](path)
    return True


def check(odd: OddFolder, path: Path) -> str:
    """Compare the folder in both libraries; "equal", or the sentence of the refusal."""
    try:
        ours = regard.load(path)
    except UserError as error:
        named = [name for name in odd.names if name in str(error)]
        assert named, f"{odd}: the refusal names no odd setting: {error}"
        assert not odd.files or odd.files[0] not in READABLE or odd.files[0] not in named, f"{odd}: {error}"
        return str(error)
    FAMILIES[odd.family].compare(ours, path, odd.settings)
    return "equal"


def draw_written(seed: int, folder: Path) -> tuple[OddFolder, Path]:
    """The first folder of this seed that transformers can write and read; seeds take turns over the families."""
    rng, turns = random.Random(seed), [name for name in FAMILIES for _ in range(1 + FAMILIES[name].processor)]
    for number in range(40):
        odd, path = draw(rng, turns[seed % len(turns)]), folder / f"{seed}-{number}"
        if write(odd, path):
            return odd, path
    raise AssertionError(f"transformers cannot read any of 40 folders of seed {seed}")


def main() -> None:
    """Check the folders of seeds from the first to before the second argument; print how many are equal and refused."""
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    counts: Counter[str] = Counter()
    for seed in range(*map(int, sys.argv[1:3])):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            odd, path = draw_written(seed, Path(folder))
            counts["equal" if check(odd, path) == "equal" else "refused by name"] += 1
    print(dict(counts))


if __name__ == "__main__":
    main()
