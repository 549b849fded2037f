"""Attention of encoder–decoder models while they read a source and write known tokens."""

from collections.abc import Callable, Sequence

import torch

from ...families.protocols import Seq2SeqModel, as_module
from ...look import AttentionView, ViewAxis, Which, attention_sites, record_attention, record_layers
from ...parts import Encoded, Inputs
from ...processors.text.tokenizers import Tokenizer
from .logits import known_logprobs

END, START = "■", "□"  # how details and pictures show the two


@torch.no_grad()
def view_target(
    model: Seq2SeqModel,
    tokenizer: Tokenizer,
    source: Inputs,
    source_axis: Callable[[Encoded], ViewAxis],
    tokens: Sequence[int],
    prompt: Sequence[int],
    layer: Which = None,
    title: str = "",
) -> AttentionView:
    """The attention weights of one source while the model writes these tokens after a prompt."""
    with record_layers(as_module(model), layer) as recorder:
        encoded = model.encode(source)
        (logprobs,) = known_logprobs(model, encoded, [prompt], [tokens], tokenizer)
    before = len(prompt) - 1  # rows that predict the prompt itself
    layers = [(site, weights[:, before:] if site.kind == "cross" else weights) for site, weights in recorder.layers()]
    axes = {"source": source_axis(encoded), **target_axes(tokenizer, tokens, prompt)}
    return AttentionView.of(layers, axes, recorder.counts, title, logprobs)


def trace_target(
    model: Seq2SeqModel,
    tokenizer: Tokenizer,
    encoded: Encoded,
    source_axis: ViewAxis,
    tokens: Sequence[int],
    prompt: Sequence[int],
) -> tuple[list[float], AttentionView]:
    """The log-probabilities of tokens and END after a prompt, and the cross-attention of the decoder."""
    module = as_module(model)
    sites = [site for site in attention_sites(module) if site.kind == "cross"]
    with record_attention(module, [site.path for site in sites]) as maps:
        (logprobs,) = known_logprobs(model, encoded, [prompt], [tokens], tokenizer)
    layers = [(site, maps[site.path][0, :, len(prompt) - 1 :].cpu()) for site in sites]
    return logprobs, AttentionView.of(layers, {"source": source_axis, **target_axes(tokenizer, tokens, prompt)})


def target_axes(tokenizer: Tokenizer, tokens: Sequence[int], prompt: Sequence[int]) -> dict[str, ViewAxis]:
    """The tokens that are written, and those that the decoder reads."""
    pieces = tokenizer.pieces(tokens)
    read = [START if token == tokenizer.start else tokenizer.pieces([token])[0] for token in prompt]
    return {
        "target": ViewAxis.of_tokens("target", [*pieces, END], ended=True),
        "prefix": ViewAxis.of_tokens("token", [*read, *pieces]),
    }
