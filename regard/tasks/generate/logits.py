"""The logits of encoder–decoder models for known targets."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from ...data.batch import Batch
from ...data.datasets.collate import prompted_targets
from ...decode import Ensemble
from ...decode.engine.ensemble import mean_logprobs
from ...families.protocols import Seq2SeqModel
from ...parts import Encoded
from ...processors.text.tokenizers import Tokenizer


def logits(model: Seq2SeqModel | Ensemble, batch: Batch) -> Tensor:
    """For a known target: (tokens, vocab) of the valid tokens of padded rows, (rows, width, vocab) of packed rows."""
    if isinstance(model, Ensemble):
        return mean_logprobs([logits(member, batch) for member in model.members])
    states, kept = decoder_states(model, batch), batch["labels"].positions
    return model.logits(states if kept is None else states.flatten(0, 1)[kept])


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
