"""The objectives of models that write all tokens at once."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from ..data.batch import Batch
from ..data.collate import IGNORED
from ..decode import parallel
from ..families.protocols import FertilityModel, InfillModel, ParallelModel, Seq2SeqModel
from ..parts import Encoded, Inputs
from ..parts.fertility import copy_tokens
from ..parts.losses import smoothed_cross_entropy
from ..training.objective import LossSum, Objective


class FertilityObjective(Objective):
    """Summed over the target tokens, which the copies of known fertilities predict; and over the fertilities."""

    def __init__(self, model: nn.Module, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, batch: Batch) -> LossSum:
        return self.plain_losses(batch, cast(FertilityModel, self.model).encode(batch["source"]))

    def plain_losses(self, batch: Batch, encoded: Encoded) -> LossSum:
        model = cast(FertilityModel, self.model)
        loss = token_loss(model, batch["copies"], encoded, batch["labels"], self.smoothing)
        wanted = batch["fertility"].values.flatten()
        found = model.fertility_logits(encoded).float().flatten(0, 1)
        return LossSum(loss, {"fertility": cross_entropy(found, wanted, reduction="sum", ignore_index=IGNORED)})


class TaughtFertilityObjective(FertilityObjective):
    """Fine-tuning by a teacher that writes token by token (1711.02281, section 4.2), with weight λ.

    (1 - λ) · the plain losses + λ · (the divergence for sampled fertilities + its policy gradient). The divergence is
    the teacher's cross-entropy under the probabilities of the model, after the model's own likeliest tokens. It reaches
    the decoder through these probabilities, and the fertility predictor by REINFORCE, with the mean fertilities as the
    baseline.
    """

    def __init__(
        self,
        model: nn.Module,
        smoothing: float,
        teacher: nn.Module,
        weight: float,
        start: int,
        longest: int | None = None,
    ) -> None:
        """The teacher begins with the token `start`; `longest` is the most tokens that both models can read."""
        super().__init__(model, smoothing)
        self.frozen = (teacher.eval().requires_grad_(False),)  # a tuple: not a part of what is trained and saved
        self.weight, self.start, self.longest = weight, start, longest

    def forward(self, batch: Batch) -> LossSum:
        model, source = cast(FertilityModel, self.model), batch["source"]
        encoded = model.encode(source)
        plain = self.plain_losses(batch, encoded)
        logprobs = parallel.fertility_logprobs(model, encoded)
        with torch.no_grad():
            taught = cast(Seq2SeqModel, self.frozen[0]).encode(source)
            limits = self.copy_limits(source)
            sampled = parallel.limit_fertilities(parallel.random_fertilities(logprobs), limits)
            mean = parallel.limit_fertilities(parallel.mean_fertilities(logprobs), limits)
            baseline = self.divergence(source, mean, encoded, taught)
        divergence = self.divergence(source, sampled, encoded, taught)
        chosen = logprobs.gather(-1, sampled[..., None])[..., 0].sum(1)
        tuned = divergence.sum() + ((divergence.detach() - baseline) * chosen).sum()
        terms = {name: (1 - self.weight) * term for name, term in plain.terms.items()}
        return LossSum((1 - self.weight) * plain.sum + self.weight * tuned, terms)

    def copy_limits(self, source: Inputs) -> Tensor:
        """(rows,): the most copies of a source, as in decoding: twice its length and 16, within the positions."""
        assert source.valid is not None
        limits: Tensor = 2 * source.valid.sum(1) + 16
        return limits if self.longest is None else limits.clamp(max=self.longest)

    def divergence(self, source: Inputs, fertilities: Tensor, encoded: Encoded, taught: Encoded) -> Tensor:
        """(rows,): the teacher's cross-entropy, summed over the tokens that the copies become."""
        model, teacher = cast(FertilityModel, self.model), cast(Seq2SeqModel, self.frozen[0])
        values, valid = copy_tokens(source.values, fertilities)
        if not values.size(1):
            return encoded.states.new_zeros(len(values))
        logits = model.logits(model.decode(Inputs("tokens", values, valid), encoded)).float()
        with torch.no_grad():
            written = pad(logits.argmax(-1)[:, :-1], (1, 0), value=self.start)
            wanted = teacher.logits(teacher.decode(Inputs("tokens", written), taught)).float().log_softmax(-1)
        return -(logits.softmax(-1) * wanted).sum(-1).masked_fill(~valid, 0.0).sum(1)


class InfillObjective(Objective):
    """Summed over the masked tokens; and over the lengths of the targets."""

    def __init__(self, model: nn.Module, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, batch: Batch) -> LossSum:
        model = cast(InfillModel, self.model)
        encoded = model.encode(batch["source"])
        loss = token_loss(model, batch["target"], encoded, batch["labels"], self.smoothing)
        lengths = cross_entropy(model.length_logits(encoded).float(), batch["length"].values, reduction="sum")
        return LossSum(loss, {"length": lengths})


def token_loss(model: ParallelModel, target: Inputs, encoded: Encoded, labels: Inputs, smoothing: float) -> Tensor:
    """Of the labels alone, which say where they are in the flattened target."""
    assert labels.positions is not None
    states = model.decode(target, encoded).flatten(0, 1)[labels.positions]
    return smoothed_cross_entropy(model.logits(states), labels.values, smoothing=smoothing)
