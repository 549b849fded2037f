"""The slot variants of every family, as subjects of its laws."""

from typing import Any

import torch
from torch import Tensor

from regard.config.family import family_of
from regard.config.registry import FAMILIES
from regard.families.spec import Output
from regard.parts.inputs import Inputs, TensorKind
from regard.testing import Subject, make_subject
from regard.testing.subjects import HEAD

Case = tuple[str, str]  # family, variant

NARROW = {"width": 48, "heads": 2, "layers": 1, "inner": 64}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "transformer": {
        "paper": {},
        "prenorm": {"prenorm": True},
        "additive": {"attention": {"kind": "additive"}},
        "unscaled": {"attention": {"kind": "dense", "scaled": False}},
        "learned": {"positions": {"kind": "learned", "tokens": 64}},
        "rotary": {"positions": {"kind": "rotary"}},
        "buckets": {"positions": {"kind": "buckets"}},
        "gated rms": {"feed": {"kind": "gated"}, "norm": {"kind": "rms"}, "prenorm": True},
        "untied": {"tied": False, "target_vocab": 41, "biased": True, "decoder_layers": 1},
    },
    "t5": {
        "later": {},
        "first": {"tied": True, "feed": {"kind": "plain", "act": "relu"}, "head_width": 24, "decoder_layers": 1},
        "rotary": {"positions": {"kind": "rotary"}, "head_width": 24, "norm": "layer", "target_vocab": 41},
    },
    "bert": {
        "paper": {"head": "words"},
        "tags": {"head": "tag", "prenorm": True, "positions": "sinusoid"},
        "conv": {"head": "words", "feed": {"kind": "conv", "act": "gelu"}, "positions": "rotary", "tied": False},
        "gated rms": {"head": "words", "feed": "gated", "norm": "rms"},
        "window": {"head": "words", "attention": {"kind": "window", "radius": 3}},
        "favor": {"head": "words", "attention": {"kind": "favor", "features": 32}},
        "lowrank": {
            "head": "words",
            "attention": {"kind": "lowrank", "rank": 5, "tokens": 12},
            "positions": "sinusoid",
        },
        "lowrank layers": {
            "head": "words",
            "attention": {"kind": "lowrank", "rank": 5, "tokens": 12, "sharing": "layers"},
        },
        "additive": {"head": "words", "attention": "additive"},
        "class": {"head": "class"},
        "embedding": {"head": "none", **NARROW},
    },
    "longformer": {
        "paper": {"head": "words", "attention": {"radius": 3}},
        "several": {
            "head": "tag",
            "positions": "rotary",
            "attention": {"radius": [1, 2], "dilation": [1, 2], "globals": 3},
        },
        "class": {"head": "class", "attention": {"radius": 3}},
        "embedding": {"head": "none", **NARROW, "attention": {"radius": 3}},
    },
    "bigbird": {
        "paper": {"head": "words", "attention": {"kind": "blocks", "size": 1, "random": 1}},
        "tags": {"head": "tag", "attention": {"kind": "blocks", "size": 1, "random": 0, "seed": 3}},
        "dense": {"head": "words", "attention": "dense"},
        "class": {"head": "class", "attention": {"kind": "blocks", "size": 1, "random": 1}},
        "embedding": {"head": "none", **NARROW, "attention": {"kind": "blocks", "size": 1, "random": 1}},
    },
    "lm": {
        "paper": {},
        "untied": {"tied": False},
        "window": {"attention": {"kind": "window", "radius": 3}},
        "favor": {"attention": {"kind": "favor", "features": 32}},
    },
    "gpt": {
        "gpt2": {},
        "modern": {"size": "modern-tiny"},
        "sinusoid": {"positions": "sinusoid", "tied": False, "biased": False},
        "buckets": {"positions": "buckets", "key_heads": 2},
        "window": {"attention": {"kind": "window", "radius": 4}, "key_heads": 2, "positions": "rotary"},
        "dilated": {"attention": {"kind": "window", "radius": [3, 2], "dilation": [1, 2]}},
        "favor": {"attention": {"kind": "favor", "features": 32}, "key_heads": 2, "head_width": 24},
        "additive": {"attention": "additive", "key_heads": 1, "feed": {"kind": "plain", "act": "relu"}},
    },
    "xl": {
        "paper": {},
        "same": {"same_length": True, "memory": 5, "tied": False},
        "prenorm": {"prenorm": True, "norm": "rms", "feed": "gated"},
        "without memory": {"memory": 0},
    },
    "rnn": {
        "translator": {"heads": 4},
        "gru": {"cell": "gru", "attention": "dense", "tied": False, "target_vocab": 41, "decoder_layers": 1},
        "writer": {"head": "next"},
        "plain writer": {"head": "next", "cell": "rnn", "layers": 1, "tied": False, "width": 37},
        "tags": {"head": "tag"},
        "plain tags": {"head": "tag", "cell": "rnn", "width": 66},
        "class": {"head": "class"},
    },
    "cnn": {
        "translator": {},
        "wide": {"kernel_size": 5, "attention": "additive", "tied": False, "target_vocab": 41, "decoder_layers": 2},
        "writer": {"head": "next"},
        "learned": {"head": "next", "kernel_size": 1, "positions": {"kind": "learned", "tokens": 64}},
        "tags": {"head": "tag", "kernel_size": 5},
        "class": {"head": "class", "pooling": "mean"},
    },
    "nat": {
        "paper": {},
        "additive": {"attention": {"kind": "additive"}, "prenorm": True, "norm": {"kind": "rms"}},
        "learned": {"positions": {"kind": "learned", "tokens": 64}, "positional": False, "feed": {"kind": "gated"}},
        "untied": {"tied": False, "target_vocab": 61, "decoder_layers": 1, "max_fertility": 3},
        "even": {"fertilities": False, "max_length": 30},
    },
    "nat-ctc": {"plain": {"positional": False, "prenorm": True, "feed": {"kind": "gated"}, "upsample": 2}},
    "cmlm": {
        "paper": {},
        "prenorm": {"prenorm": True, "positions": {"kind": "rotary"}, "feed": {"kind": "gated"}},
        "buckets": {"positions": {"kind": "buckets"}, "norm": {"kind": "rms"}},
        "untied": {"tied": False, "target_vocab": 61, "decoder_layers": 1, "max_length": 9},
    },
    "omni": {
        "tokens": {"inputs": ["tokens"]},
        "tokens buckets": {"inputs": ["tokens", "pixels"], "positions": {"kind": "buckets"}, "feed": {"kind": "gated"}},
    },
}
MEDIA_VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "vit": {
        "paper": {"head": "class"},
        "mean": {"head": "class", "pool": "mean", "feed": "gated", "norm": "rms"},
        "stem": {"head": "class", "stem": [6, 8]},
    },
    "detr": {
        "paper": {},
        "basic": {
            "bottleneck": False,
            "stages": [8, 16, 16],
            "depths": [2, 1, 1],
            "strides": [1, 1, 2],
            "decoder_layers": 1,
            "feed": {"act": "gelu"},
            "backbone_norm": {"kind": "group", "groups": 4},
        },
        "frozen": {"backbone_norm": "frozen"},
        "anchors": {"anchors": "learned"},
        "proposed": {"anchors": "proposed", "denoising": 1, "queries": 4},
    },
    "captioner": {
        "paper": {},
        "projected": {
            "width": 48,
            "tied": False,
            "positions": {"kind": "rotary"},
            "feed": {"kind": "gated"},
            "encoder": {"image": 16, "patch": 4, "width": 32, "heads": 2, "layers": 1, "inner": 48, "pool": "mean"},
        },
    },
    "speech": {
        "joint": {},
        "decoder": {"ctc": {"weight": 0}, "prenorm": False, "positions": {"kind": "rotary"}, "decoder_layers": 1},
        "gated rms": {"feed": {"kind": "gated"}, "norm": {"kind": "rms"}, "positions": {"kind": "buckets"}},
        "2-D": {"attention_2d": 2},
    },
    "whisper": {
        "paper": {},
        "untied": {"tied": False, "decoder_layers": 1, "feed": {"kind": "gated"}, "norm": {"kind": "rms"}},
    },
    "omni": {
        "pixels": {"inputs": ["pixels", "tokens"], "norm": {"kind": "rms"}, "tied": False, "stem": [6]},
        "frames": {"inputs": ["frames"], "ctc": {"weight": 0.3}, "positions": {"kind": "rotary"}, "prenorm": False},
    },
}
MEDIA_VARIANTS["clip"] = {
    "image": {},
    "mean": {
        "source": {"kind": "image", "image": 32, "patch": 4, "stem": [8], **NARROW, "pool": "mean", "norm": "rms"}
    },
    "audio": {},
    "text": {},
    "bidirectional": {"text": {**NARROW, "causal": False, "pool": "mean", "positions": "rotary", "feed": "gated"}},
}
READ: dict[Case, TensorKind] = {  # what a case reads, of a family with several modalities
    ("clip", "image"): "pixels", ("clip", "mean"): "pixels", ("clip", "audio"): "frames", ("clip", "text"): "tokens",
    ("clip", "bidirectional"): "tokens",
}  # fmt: skip
CASES = [(family, name) for family in FAMILIES for name in VARIANTS.get(family, ())]  # models of tokens
MEDIA_CASES = [(family, name) for family, variants in MEDIA_VARIANTS.items() for name in variants]
LOOSE = {
    ("bert", "favor"): {"packing"},
    ("bert", "lowrank"): {"packing", "recording"},
    ("bert", "lowrank layers"): {"packing", "recording"},
    ("longformer", "paper"): {"packing"},
    ("longformer", "several"): {"packing"},
    ("bigbird", "paper"): {"packing"},
    ("bigbird", "tags"): {"packing"},
    ("detr", "frozen"): {"batch_invariance", "learning"},
}  # laws that a case does not keep: favor has one sum per row, lowrank one map, whose numbers are no shares; a packed row has
# more than one first token, or first block; frozen norms read padding as image, as the published models do, and are refused in training from scratch


def output_of(case: Case) -> Output:
    """What a case writes: its head says it, or its family has one output only."""
    family, _ = case
    fields = family_of(family).Config.model_fields
    if "head" not in fields:
        (output,) = family_of(family).SPEC.writes
        return output
    head = settings_of(case).get("head", fields["head"].default)
    return next(output for output, value in HEAD.items() if value == head)


def settings_of(case: Case) -> dict[str, Any]:
    family, name = case
    return (VARIANTS.get(family, {}) | MEDIA_VARIANTS.get(family, {}))[name]


def modality_of(case: Case) -> TensorKind:
    """What a case reads: the first of its inputs, or its family has one modality only."""
    if case in READ:
        return READ[case]
    if inputs := settings_of(case).get("inputs"):
        first: TensorKind = inputs[0]
        return first
    (modality,) = family_of(case[0]).SPEC.reads
    return modality


def case_subject(case: Case, **settings: Any) -> Subject:
    """The small model of a case; `settings` change its config."""
    subject = make_subject(family_of(case[0]), modality_of(case), output_of(case), settings_of(case) | settings)
    subject.exempt = frozenset(LOOSE.get(case, ()))
    return subject


def sample(case: Case, rows: int, length: int) -> Inputs:
    """Random inputs of a case: tokens, or images."""
    if modality_of(case) == "tokens":
        return Inputs("tokens", ids(rows, length))
    subject = case_subject(case)
    return subject.probe.batch(subject.sample(*[length] * rows))


def ids(rows: int, tokens: int) -> Tensor:
    return torch.randint(4, 40, (rows, tokens))
