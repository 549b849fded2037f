"""A run as a CTranslate2 model, by that library's own specification: fast translation without torch."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from ..config.run import Run
from ..errors import UserError
from ..families import transformer
from ..parts import Attention, Residual, Stack, slots
from ..parts.feed import FeedForward, GatedFeedForward
from ..parts.kernels import SoftmaxKernel
from ..processors.text.tokenizers import Tokenizer
from .exporter import Exporter
from .huggingface.generation import max_positions
from .huggingface.seq2seq import write_tokenizers
from .parity import BEAM, MIN_EQUAL_TEXTS, MatchCount, Seq2SeqSample, beam, best_hypotheses, check_difference, greedy

if TYPE_CHECKING:
    from ctranslate2.specs import attention_spec, common_spec, transformer_spec

    from ..tasks.translate.task import TranslatePredictor

TYPES = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}  # our names of precisions to theirs
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}


def import_ctranslate2() -> ModuleType:
    """The library, or a UserError that names the extra to install."""
    try:
        return import_module("ctranslate2")
    except ImportError as error:
        raise UserError("--to ctranslate2 needs ctranslate2; install it with: pip install 'regard[export]'") from error


def unsupported(c: transformer.Config) -> list[str]:
    """Settings of a model that CTranslate2 cannot have; empty if it can be exported."""
    refusals = []
    if not isinstance(c.attention, slots.Dense):
        refusals.append(f"model.attention.kind={c.attention.kind} (expected dense)")
    if not isinstance(c.positions, slots.Sinusoid | slots.Learned):
        refusals.append(f"model.positions.kind={c.positions.kind} (expected sinusoid or learned)")
    return refusals


def write(predictor: "TranslatePredictor", draft: Path, precision: str) -> None:
    """Write every file of the folder except README.md."""
    converters = import_ctranslate2().converters

    class Converter(converters.Converter):  # type: ignore[name-defined, misc]
        def _load(self) -> "transformer_spec.TransformerSpec":
            return build_spec(predictor)

    with torch.no_grad():
        Converter().convert(str(draft), quantization=TYPES[precision])
    write_tokenizers(predictor, draft)


def build_spec(predictor: "TranslatePredictor") -> "transformer_spec.TransformerSpec":
    """The model as CTranslate2's specification, with weights and vocabularies."""
    from ctranslate2.specs import TransformerSpec, common_spec

    run: Run = predictor.run
    c, model = run.model, cast(transformer.Model, predictor.model)
    spec = TransformerSpec.from_config(
        (c.layers, c.decoder_layers or c.layers),
        c.heads,
        pre_norm=c.prenorm,
        activation=common_spec.Activation[ACTIVATIONS[c.feed.act]],
        ffn_glu=isinstance(c.feed, slots.Gated),
        rms_norm=isinstance(c.norm, slots.RMSNorm),
    )
    fill_stack(spec.encoder, model.encoder, model, model.source, run)
    fill_stack(spec.decoder, model.decoder, model, model.target, run)
    fill_linear(spec.decoder.projection, model.head)
    register_vocabularies(spec, predictor, c)
    return spec


def register_vocabularies(
    spec: "transformer_spec.TransformerSpec", predictor: "TranslatePredictor", c: transformer.Config
) -> None:
    """Set the vocabularies and their control tokens."""
    target = token_strings(predictor.target)
    spec.register_source_vocabulary(token_strings(predictor.source))
    spec.register_target_vocabulary(target)
    spec.config.bos_token = spec.config.decoder_start_token = target[predictor.target.start]
    spec.config.eos_token, spec.config.unk_token = target[predictor.target.end], target[predictor.target.unk]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = c.norm.eps


def token_strings(tokenizer: Tokenizer) -> list[str]:
    """The token of every id."""
    backend: Any = tokenizer.backend  # type: ignore[attr-defined]  # of trained tokenizers, the only ones exported
    return [backend.id_to_token(number) for number in range(tokenizer.size)]


def fill_stack(
    spec: "transformer_spec.TransformerEncoderSpec | transformer_spec.TransformerDecoderSpec",
    stack: Stack,
    model: transformer.Model,
    table: nn.Embedding,
    run: Run,
) -> None:
    """Copy a stack into its CTranslate2 specification."""
    embeddings = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
    embeddings.weight = table.weight.clone()  # the library rounds to int8 in place
    spec.scale_embeddings = float(model.scale)
    learned = isinstance(run.model.positions, slots.Learned)
    count = run.model.positions.tokens if learned else max_positions(run)
    spec.position_encodings.encodings = stack.add_positions(torch.zeros(1, count, run.model.width))[0]
    if run.model.prenorm:
        fill_norm(spec.layer_norm, stack.norm)
    layers: Sequence[Any] = stack.layers
    for theirs, ours in zip(spec.layer, layers, strict=True):
        fill_attention(theirs.self_attention, ours.attention, ours.attention_residual)
        if ours.cross is not None:
            fill_attention(theirs.attention, ours.cross, ours.cross_residual)
        fill_feed(theirs.ffn, ours.feed, ours.feed_residual)


def fill_attention(spec: "attention_spec.MultiHeadAttentionSpec", attention: Attention, residual: Residual) -> None:
    """Copy attention into its CTranslate2 specification."""
    if len(spec.linear) == 2:  # self-attention: query, key and value have one input
        fill_linear(spec.linear[0], attention.query, attention.key, attention.value)
    else:
        fill_linear(spec.linear[0], attention.query)
        fill_linear(spec.linear[1], attention.key, attention.value)
    assert isinstance(attention.out, nn.Linear) and isinstance(attention.kernel, SoftmaxKernel)
    fill_linear(spec.linear[-1], attention.out)
    if attention.kernel.scale is not None:
        spec.queries_scale = float(attention.kernel.scale)
    fill_norm(spec.layer_norm, residual.norm)


def fill_feed(spec: "transformer_spec.FeedForwardSpec", feed: FeedForward, residual: Residual) -> None:
    """Copy a feed-forward into its CTranslate2 specification."""
    if isinstance(feed, GatedFeedForward):
        fill_linear(spec.linear_0, feed.gate)
        fill_linear(spec.linear_0_noact, feed.into)
    else:
        fill_linear(spec.linear_0, feed.into)
    fill_linear(spec.linear_1, feed.out)
    fill_norm(spec.layer_norm, residual.norm)


def fill_linear(spec: "common_spec.LinearSpec", *maps: nn.Linear) -> None:
    """Concatenate maps of one input into the single map of CTranslate2."""
    spec.weight = torch.cat([linear.weight for linear in maps])
    if maps[0].bias is not None:
        spec.bias = torch.cat([linear.bias for linear in maps])


def fill_norm(spec: "common_spec.LayerNormSpec", ours: nn.Module) -> None:
    """Copy a norm into its CTranslate2 specification."""
    spec.gamma = ours.weight
    if getattr(ours, "bias", None) is not None:
        spec.beta = ours.bias


def verify(predictor: "TranslatePredictor", draft: Path, precision: str) -> str:
    """Compare log-probabilities and texts with CTranslate2's. Below fp32 they differ: differences are only reported."""
    sample, library = Seq2SeqSample(predictor), import_ctranslate2()
    count = MatchCount(MIN_EQUAL_TEXTS if precision == "fp32" else 0.0)
    translator = library.Translator(str(draft), device="cpu")
    predictor = predictor.with_model(predictor.module)
    predictor.filters = ()  # CTranslate2 renormalizes after a filter and regard does not
    source, target = token_strings(predictor.source), token_strings(predictor.target)
    target_ids = {name: number for number, name in enumerate(target)}
    tokens = [[source[number] for number in ids] for ids in sample.ids]
    difference, largest = 0.0, sample.logits.abs().max().item()
    penalty: float = predictor.run.decode.strategy.length_penalty
    for size, ours in ((1, greedy(sample.max_tokens)), (BEAM, beam(sample.max_tokens, "first", penalty))):
        theirs = {"beam_size": size, "length_penalty": penalty, "min_decoding_length": 0}
        outputs = translator.translate_batch(tokens, max_decoding_length=sample.max_tokens, **theirs)
        ids = [[target_ids[name] for name in output.hypotheses[0]] for output in outputs]
        scores = translator.score_batch(tokens, [output.hypotheses[0] for output in outputs])
        for score, expected in zip(scores, predictor.logprobs(sample.ids, ids), strict=True):
            pairs = zip(score.log_probs, expected, strict=True)
            difference = max(difference, *(abs(actual - reference) for actual, reference in pairs))
        if precision == "fp32":
            check_difference("CTranslate2 gives log-probabilities", difference, largest)
        best = best_hypotheses(predictor, sample.texts, ours)
        ended = [i for i, hypothesis in enumerate(best) if hypothesis.ended]  # unended texts are cut off elsewhere
        theirs_texts, our_texts = (
            predictor.target.decode(ids),
            predictor.target.decode([hypothesis.tokens for hypothesis in best]),
        )
        count.add("CTranslate2", [theirs_texts[i] for i in ended], [our_texts[i] for i in ended])
    result = f"{count} to those of fp32, log-probabilities apart by {difference:.1g}"
    return f"{len(tokens)} sentences with ctranslate2 {library.__version__}: {result}"


def usage(predictor: "TranslatePredictor") -> str:
    """A usage example with CTranslate2."""
    decode = predictor.run.decode
    beam = decode.strategy.size if decode.strategy.kind == "beam" else 1
    target = "source" if predictor.source is predictor.target else 'Tokenizer.from_file("target/tokenizer.json")'
    return f"""
```python
import ctranslate2
from tokenizers import Tokenizer

translator = ctranslate2.Translator(".")
source = Tokenizer.from_file("tokenizer.json")
source.encode_special_tokens = True  # control tokens in a text are ordinary text
target = {target}
tokens = source.encode("a sentence", add_special_tokens=False).tokens
outputs = translator.translate_batch([tokens], beam_size={beam}, length_penalty={decode.strategy.length_penalty:g},
                                     min_decoding_length=0, suppress_sequences=[["<pad>"], ["<s>"]])
print(target.decode([target.token_to_id(token) for token in outputs[0].hypotheses[0]]))
```

The model adds END to the source by itself. END counts in the length by which a score is divided. A beam search ends
as in regard with `decode.strategy.early_stopping=first`.
"""


EXPORTERS: dict[str, list[Exporter]] = {
    "transformer": [Exporter("a CTranslate2 model", unsupported, write, verify, usage, lambda c: "translation")]
}
