"""The logits of encoder–decoder models for known targets."""

from torch import Tensor

from ..data.batch import Batch
from ..decode import Ensemble
from ..decode.ensemble import mean_logprobs
from ..families.protocols import Seq2SeqModel


def logits(model: Seq2SeqModel | Ensemble, batch: Batch) -> Tensor:
    """For a known target: (tokens, vocab) of the valid tokens of padded rows, (rows, width, vocab) of packed rows."""
    if isinstance(model, Ensemble):
        return mean_logprobs([logits(member, batch) for member in model.members])
    states, kept = decoder_states(model, batch), batch["labels"].positions
    return model.logits(states if kept is None else states.flatten(0, 1)[kept])


def decoder_states(model: Seq2SeqModel, batch: Batch) -> Tensor:
    """The decoder's output for a known target: (batch, tokens, width)."""
    return model.decode(batch["target"], model.encode(batch["source"]))
