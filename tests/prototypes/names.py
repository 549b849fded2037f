"""BART's names of encoder and decoder layers, which Whisper and DETR use too."""

from regard.formats.huggingface.weight_names import WeightRule, prefixed

Names = dict[str, str | WeightRule]


def bart(prefix: str, out: str = "out_proj", feed: str = "") -> Names:
    layer = looking("attention", "self_attn", out) | {
        "feed.into": f"{feed}fc1",
        "feed.out": f"{feed}fc2",
        "feed_residual.norm": "final_layer_norm",
    }
    decoder = layer | looking("cross", "encoder_attn", out)
    return prefixed("encoder.layers.*", f"{prefix}encoder.layers.*", layer) | prefixed(
        "decoder.layers.*", f"{prefix}decoder.layers.*", decoder
    )


def looking(ours: str, theirs: str, out: str) -> Names:
    parts = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": out}
    return prefixed(ours, theirs, parts) | {f"{ours}_residual.norm": f"{theirs}_layer_norm"}
