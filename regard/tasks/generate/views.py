"""Encoder–decoder models reading known targets: logits, log-probabilities, and views of attention."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ...data.batch import Batch
from ...data.datasets.collate import prompted_targets
from ...decode import Ensemble
from ...decode.engine.wrappers import mean_logprobs
from ...families.protocols import Seq2SeqModel, as_module
from ...look import AttentionView, ViewAxis, Which, attention_sites, record_attention, record_layers
from ...parts import Encoded, Inputs
from ...processors.text.tokenizers import Tokenizer

END, START = "■", "□"  # their symbols in details and pictures


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
    target_tokens = tokenizer.tokens(tokens)
    prefix = [START if token == tokenizer.start else tokenizer.tokens([token])[0] for token in prompt]
    return {
        "target": ViewAxis.of_tokens("target", [*target_tokens, END], ended=True),
        "prefix": ViewAxis.of_tokens("token", [*prefix, *target_tokens]),
    }


def logits(model: Seq2SeqModel | Ensemble, batch: Batch) -> Tensor:
    """For a known target: (tokens, vocab) of the valid tokens of padded rows, (rows, width, vocab) of packed rows."""
    if isinstance(model, Ensemble):
        return mean_logprobs([logits(member, batch) for member in model.members])
    states, positions = decoder_states(model, batch), batch["labels"].positions
    return model.logits(states if positions is None else states.flatten(0, 1)[positions])


def decoder_states(model: Seq2SeqModel, batch: Batch) -> Tensor:
    """The decoder's output for a known target: (batch, tokens, width)."""
    return model.decode(batch["target"], model.encode(batch["source"]))


def known_logprobs(
    model: Seq2SeqModel,
    encoded: Encoded,
    prompts: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
) -> list[list[float]]:
    """The log-probability of every token of known targets and of END, after prompts that end in START."""
    ended = [np.array([*tokens, tokenizer.end], np.int32) for tokens in targets]
    batch = prompted_targets([np.array(prompt) for prompt in prompts], ended, tokenizer.pad)
    target, labels = (batch[name].to(encoded.states.device) for name in ("target", "labels"))
    states = model.decode(target, encoded).flatten(0, 1)[labels.positions]
    scores = model.logits(states).float().log_softmax(-1)
    values = iter(scores.gather(-1, labels.values[:, None])[:, 0].tolist())
    return [[next(values) for _ in ids] for ids in ended]
