"""The objectives of models that write all tokens at once."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from ..data.batch import Batch
from ..data.collate import IGNORED
from ..decode.copies import limit_fertilities, predict_copying
from ..families.protocols import FertilityModel, InfillModel, ParallelModel, Seq2SeqModel
from ..parts import Encoded, Inputs
from ..parts.fertility import copy_tokens
from ..parts.losses import smoothed_cross_entropy
from ..training.objective import LossSum, Objective


class FertilityObjective(Objective):
    """Summed over the target tokens, which the copies of known fertilities predict; and over fertilities or lengths.

    With `glancing` λ (2008.07905), a first pass counts the wrong tokens of a target. λ times as many of its tokens,
    drawn at random, are then shown to the decoder instead of copies, and only the others are learned.
    """

    def __init__(self, model: nn.Module, smoothing: float, glancing: float = 0.0) -> None:
        super().__init__()
        self.model, self.smoothing, self.glancing = model, smoothing, glancing

    def forward(self, batch: Batch) -> LossSum:
        return self.plain_losses(batch, cast(FertilityModel, self.model).encode(batch["source"]))

    def plain_losses(self, batch: Batch, encoded: Encoded) -> LossSum:
        model, copies, labels = cast(FertilityModel, self.model), batch["copies"], batch["labels"]
        assert copies.valid is not None and labels.positions is not None
        shown = self.glance(copies, encoded, labels) if self.glancing else None
        states = model.decode(copies, encoded, shown).flatten(0, 1)[labels.positions]
        learned = None if shown is None else shown.flatten()[labels.positions] < 0
        loss = smoothed_cross_entropy(model.logits(states), labels.values, learned, self.smoothing)
        if not model.fertilities:
            found, lengths = model.length_logits(encoded).float(), copies.valid.sum(1)
            return LossSum(loss, {"length": cross_entropy(found, lengths, reduction="sum")})
        found, wanted = model.fertility_logits(encoded).float().flatten(0, 1), batch["fertility"].values.flatten()
        return LossSum(loss, {"fertility": cross_entropy(found, wanted, reduction="sum", ignore_index=IGNORED)})

    def glance(self, copies: Inputs, encoded: Encoded, labels: Inputs) -> Tensor:
        """(rows, copies): the target tokens to show; -1: none.

        The first pass keeps its gradients, though nothing uses them: without them, autocast would cache weights that
        the second pass cannot train.
        """
        model, places = cast(FertilityModel, self.model), labels.positions
        assert copies.valid is not None and places is not None
        found = model.logits(model.decode(copies, encoded).flatten(0, 1)[places]).detach().argmax(-1)
        table = torch.full_like(copies.values, -1).flatten()
        wanted = table.scatter(0, places, labels.values).view_as(copies.values)
        wrong = table.scatter(0, places, (found != labels.values).long()).view_as(copies.values) > 0
        count = (wrong.sum(1, keepdim=True) * self.glancing + 0.5).long()
        order = torch.rand(copies.values.shape, device=places.device).masked_fill(~copies.valid, 2.0).argsort(1)
        return wanted.masked_fill(order.argsort(1) >= count, -1)


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
        glancing: float = 0.0,
    ) -> None:
        """The teacher begins with the token `start`; `longest` is the most tokens that both models can read."""
        super().__init__(model, smoothing, glancing)
        self.frozen = (teacher.eval().requires_grad_(False),)  # a tuple: not a part of what is trained and saved
        self.weight, self.start, self.longest = weight, start, longest

    def forward(self, batch: Batch) -> LossSum:
        model, source = cast(FertilityModel, self.model), batch["source"]
        encoded = model.encode(source)
        plain = self.plain_losses(batch, encoded)
        copying, limits = predict_copying(model, encoded), self.copy_limits(source)
        with torch.no_grad():
            taught = cast(Seq2SeqModel, self.frozen[0]).encode(source)
        drawn, chosen = copying.random()
        divergence = self.divergence(source, limit_fertilities(drawn, limits), encoded, taught)
        with torch.no_grad():  # last: autocast must not cache weights without gradients
            baseline = self.divergence(source, limit_fertilities(copying.mean(), limits), encoded, taught)
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
