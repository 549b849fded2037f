"""Settings that contradict each other: every validator of a configuration says so in one sentence."""

import pytest

import regard
from regard.errors import UserError

GPT, XL, LM = ({"model.family": family} for family in ("gpt", "xl", "lm"))
WINDOW = {**GPT, "model.attention.kind": "window"}
CASES = [
    ("translate", {"train.metric": "accuracy"}, 'train.metric is "accuracy"; expected one of loss'),
    ("translate", {"tune.kind": "lora"}, "tune.kind is lora but start is not set; set start to a run"),
    ("translate", {"decode.temperature": 0, "decode.kind": "sample"}, "decode.strategy.temperature is 0; expected more than 0"),
    ("translate", {"decode.include": "a, "}, "it has an empty phrase; expected words, with a comma between phrases"),
    ("translate", {"decode.top_k": 4}, "decode.strategy.top_k does not belong to decode.strategy=beam, which has size, n, "),
    ("translate", {"decode.nbest": 2, "decode.split": True}, "decode.split_sentences joins one translation per sentence; use 1"),
    ("translate", {"decode.nbest": 2, "decode.kind": "greedy"}, "decode.strategy.n does not belong to decode.strategy=greedy, which has length_penalty"),
    ("translate", {"decode.nbest": 9}, "decode.strategy.n is 9, above decode.strategy.size=5; raise the size of the beam"),
    ("translate", {"decode.include": "a", "decode.kind": "greedy"}, "decode.include needs beam search but decode.strategy is"),
    ("translate", {"decode.include": "a", "decode.split": True}, "decode.include and decode.split_sentences cannot be combined"),
    ("translate", {"data.train": "a,,b"}, "'a,,b' has nothing on one side of a comma"),
    ("translate", {"device": "gpu"}, "device is 'gpu'; expected auto, cpu, cuda"),
    ("translate", {"task": "translat"}, 'task is "translat"; expected one of .* did you mean translate?'),
    ("translate", {"model.width": 30, "model.heads": 4}, "30 does not divide into 4 heads"),
    ("translate", {"model.width": 9, "model.heads": 3}, "sinusoidal positions need an even width, not 9; use 10"),
    ("translate", {"model.dropout": 0.1, "model.attention.dropout": 2.0}, "attention.dropout is 2.0; expected at least 0"),
    ("classify", {"model.feed.kind": "conv", "model.feed.size": 0}, "model.feed.size is 0; expected at least 1"),
    ("classify", {"model.feed.kind": "conv", "model.feed.size": 4}, "model.feed.size is 4; expected an odd number"),
    ("translate", {"model.family": "cnn", "model.kernel_size": 4}, "model.kernel_size is 4; expected an odd number"),
    ("translate", {"model.family": "rnn", "model.width": 9}, "9.*\\(model.width\\)"),
    ("translate", {"model.family": "none"}, 'model.family is "none"; expected one of '),
    ("translate", {"decode.min_tokens": 9, "decode.max_tokens": 5}, "decode.min_tokens is 9, above decode.max_tokens=5; lower it"),
    ("translate", {"decode.forced_bos_token_id": [3, 4]}, "it has 2 tokens; expected one, with which every output begins"),
    ("translate", {"decode.bad_words_ids": [[]]}, "it has an empty sequence; expected lists of token numbers"),
    ("detect", {"data.scale": [1.0, 0.5]}, "data.scale is .1.0, 0.5.; expected the smaller number first"),
    ("detect", {"model.anchors": "none"}, "model.denoising=4 needs queries that are boxes; set model.anchors"),
    ("detect", {"model.width": 90, "model.heads": 3}, "positions of a grid need a width that 4 divides, not 90"),
    ("detect", {"model.strides": [1]}, "model.stages, model.depths and model.strides have 2, 2 and 1 numbers"),
    ("language", {"data.stride": 300}, "data.stride is 300, above data.max_tokens=128, and would skip tokens"),
    ("language", {"decode.stop": [""]}, "decode.stop has an empty string; expected text"),
    ("language", {**GPT, "model.heads": 4, "model.key_heads": 3}, "4 heads cannot share 3 key heads evenly; use a divisor"),
    ("language", {**GPT, "model.positions": "rotary", "model.width": 12, "model.heads": 4}, "rotary .* not 3; use model.width=16"),
    ("language", {**GPT, "model.positions": "rotary", "model.head_width": 3}, "rotary .* not 3; use 4 .model.head_width."),
    ("language", {**WINDOW, "model.attention.globals": 1}, "model.attention.globals is 1, and global tokens attend to later"),
    ("language", {**WINDOW, "model.attention.named": True}, "model.attention.named is true, and global tokens attend to later"),
    ("language", {**WINDOW, "model.positions": "buckets"}, "buckets adds to scores, of which model.attention.kind=window has none"),
    ("language", {**WINDOW, "model.layers": 3, "model.attention.radius": [4, 8]}, "radius lists 2 numbers for 3 layers; give 3"),
    ("language", {**LM, "model.attention.dropout": 0.1}, "in family lm model.dropout covers attention weights too"),
    ("language", {**XL, "model.attention.scaled": False}, "relative positions scale their scores; set it to true"),
    ("language", {**XL, "model.same_length": True, "model.memory": 0}, "model.same_length is true and model.memory is 0"),
]  # fmt: skip


@pytest.mark.parametrize("recipe, settings, sentence", CASES)
def test_a_contradiction_is_one_sentence(recipe, settings, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        regard.resolve(recipe, settings)
    assert "\n" not in str(caught.value)
