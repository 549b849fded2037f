"""The objectives of models that write all tokens at once."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from ...config.losses import FertilityLoss, MaskPredictLoss
from ...data.batch import Batch
from ...data.datasets.collate import IGNORED
from ...decode.parallel.copies import limit_fertilities, predict_copying
from ...families.protocols import CtcTranslationModel, FertilityModel, MaskPredictModel, Seq2SeqModel
from ...parts import Encoded, Inputs
from ...parts.losses import rdrop_divergence, smoothed_cross_entropy
from ...parts.parallel.ctc import ctc_loss
from ...parts.parallel.fertility import copy_tokens
from ...training.objective import LossSum, Objective
from ..objectives import SmoothedObjective

HIDDEN = -1e4  # logits of tokens that are never written; finite, so that 0 · log 0 is 0


class FertilityObjective(SmoothedObjective):
    """The loss of the target tokens, given copies of known fertilities, and that of the fertilities or lengths.

    With `glancing` λ (2008.07905), a first pass counts the wrong tokens of a target. λ times as many of its
    tokens, drawn at random, then replace copies as decoder inputs, and only the others are learned.
    """

    def __init__(self, model: nn.Module, settings: FertilityLoss) -> None:
        super().__init__(model, settings)
        self.glancing = settings.glancing

    def forward(self, batch: Batch) -> LossSum:
        return self.plain_losses(batch, cast(FertilityModel, self.model).encode(batch["source"]))

    def plain_losses(self, batch: Batch, encoded: Encoded) -> LossSum:
        model, copies, labels = cast(FertilityModel, self.model), batch["copies"], batch["labels"]
        assert copies.valid is not None and labels.positions is not None
        revealed = self.glance(copies, encoded, labels) if self.glancing else None
        states = model.decode(copies, encoded, revealed).flatten(0, 1)[labels.positions]
        learned = None if revealed is None else revealed.flatten()[labels.positions] < 0
        loss = smoothed_cross_entropy(model.logits(states), labels.values, learned, self.smoothing)
        if not model.fertilities:
            logits, lengths = model.length_logits(encoded).float(), copies.valid.sum(1)
            return LossSum(loss, {"length": cross_entropy(logits, lengths, reduction="sum")})
        logits, fertilities = model.fertility_logits(encoded).float().flatten(0, 1), batch["fertility"].values.flatten()
        return LossSum(loss, {"fertility": cross_entropy(logits, fertilities, reduction="sum", ignore_index=IGNORED)})

    def glance(self, copies: Inputs, encoded: Encoded, labels: Inputs) -> Tensor:
        """(rows, copies): the target tokens to reveal; -1: none.

        The first pass keeps its gradients, though nothing uses them: without them, autocast would cache weights that
        the second pass cannot train.
        """
        model, places = cast(FertilityModel, self.model), labels.positions
        assert copies.valid is not None and places is not None
        predicted = model.logits(model.decode(copies, encoded).flatten(0, 1)[places]).detach().argmax(-1)
        table = torch.full_like(copies.values, -1).flatten()
        targets = table.scatter(0, places, labels.values).view_as(copies.values)
        wrong = table.scatter(0, places, (predicted != labels.values).long()).view_as(copies.values) > 0
        count = (wrong.sum(1, keepdim=True) * self.glancing + 0.5).long()
        return targets.masked_fill(~random_places(copies.valid, count), -1)


@dataclass(frozen=True, eq=False)
class FrozenTeacher:
    """An autoregressive model that is neither trained nor saved."""

    model: nn.Module
    start: int  # the token that it begins with
    end: int
    hidden: Tensor  # tokens that are never written, END among them
    longest: int | None = None  # the most tokens that teacher and student can read

    def __post_init__(self) -> None:
        self.model.eval().requires_grad_(False)


class TaughtFertilityObjective(FertilityObjective):
    """Fine-tuning by a teacher that writes token by token (1711.02281, section 4.2), with `teacher_weight` λ.

    (1 - λ) · the plain losses + λ · (the divergence for the known fertilities + the policy gradient of sampled ones).
    The divergence is the reverse Kullback-Leibler divergence from the teacher, which reads the model's own likeliest
    tokens. It trains the decoder. The policy gradient trains the predictor of fertilities by REINFORCE: its cost is
    the teacher's mean cross-entropy under the model, and that of the mean fertilities is the baseline.
    """

    def __init__(self, model: nn.Module, settings: FertilityLoss, teacher: FrozenTeacher) -> None:
        super().__init__(model, settings)
        self.teacher, self.weight = teacher, settings.teacher_weight

    def forward(self, batch: Batch) -> LossSum:
        source = batch["source"]
        encoded = cast(FertilityModel, self.model).encode(source)
        plain = self.plain_losses(batch, encoded)
        with torch.no_grad():
            taught = cast(Seq2SeqModel, self.teacher.model).encode(source)
        tuned = self.divergence(batch["copies"], encoded, taught).sum() + self.policy_loss(source, encoded, taught)
        terms = {name: (1 - self.weight) * term for name, term in plain.terms.items()}
        return LossSum((1 - self.weight) * plain.sum + self.weight * tuned, terms)

    def divergence(self, copies: Inputs, encoded: Encoded, taught: Encoded) -> Tensor:
        """(rows,): Σ p log (p / p of the teacher), summed over the copies that the teacher can read."""
        assert copies.valid is not None
        max_copies = None if self.teacher.longest is None else self.teacher.longest - 1  # it reads START, too
        valid = copies.valid[:, :max_copies]
        logprobs, teacher_logprobs = self.predictions(
            Inputs("tokens", copies.values[:, :max_copies], valid), encoded, taught
        )
        return (logprobs.exp() * (logprobs - teacher_logprobs[:, :-1])).sum(-1).masked_fill(~valid, 0.0).sum(1)

    def policy_loss(self, source: Inputs, encoded: Encoded, taught: Encoded) -> Tensor:
        """Its gradient is that of the expected cost of sampled fertilities."""
        copying, limits = predict_copying(cast(FertilityModel, self.model), encoded), self.copy_limits(source)
        sampled, logprobs = copying.random()
        with torch.no_grad():  # last: autocast must not cache weights without gradients
            samples = [limit_fertilities(fertilities, limits) for fertilities in (sampled, copying.mean())]
            cost, baseline = (self.cost(source, fertilities, encoded, taught) for fertilities in samples)
        return ((cost - baseline) * logprobs).sum()

    def copy_limits(self, source: Inputs) -> Tensor:
        """(rows,): the most copies of a source, as in decoding: twice its length and 16, within the positions."""
        assert source.valid is not None
        limits: Tensor = 2 * source.valid.sum(1) + 16
        return limits if self.teacher.longest is None else limits.clamp(max=self.teacher.longest - 1)

    def cost(self, source: Inputs, fertilities: Tensor, encoded: Encoded, taught: Encoded) -> Tensor:
        """(rows,): the teacher's mean cross-entropy under the model, over the tokens of a translation and END.

        It is the negative score of noisy parallel decoding. The paper sums and does not mention END, which would make
        the shortest translations the cheapest.
        """
        values, valid = copy_tokens(source.values, fertilities, max(int(fertilities.sum(1).max()), 1))
        student, teacher_logprobs = self.predictions(Inputs("tokens", values, valid), encoded, taught)
        lengths = valid.sum(1)
        ends = teacher_logprobs[..., self.teacher.end].gather(1, lengths[:, None])[:, 0]
        logprobs = (student.exp() * teacher_logprobs[:, :-1]).sum(-1).masked_fill(~valid, 0.0).sum(1) + ends
        return -logprobs / (lengths + 1)

    def predictions(self, copies: Inputs, encoded: Encoded, taught: Encoded) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the model (rows, copies, vocab), and of the teacher with one more place for END.

        The teacher reads the likeliest tokens of the model. Tokens that are never written have probability 0.
        """
        model, teacher = cast(FertilityModel, self.model), cast(Seq2SeqModel, self.teacher.model)
        logits = model.logits(model.decode(copies, encoded)).float()
        logits = logits.index_fill(-1, self.teacher.hidden, HIDDEN)
        with torch.no_grad():
            prefix = Inputs("tokens", pad(logits.argmax(-1), (1, 0), value=self.teacher.start))
            teacher_logprobs = teacher.logits(teacher.decode(prefix, taught)).float().log_softmax(-1)
        return logits.log_softmax(-1), teacher_logprobs


class CtcTranslationObjective(Objective):
    """-log p of the targets by CTC, summed; without label smoothing. PAD is the blank."""

    def __init__(self, model: nn.Module, blank: int) -> None:
        super().__init__()
        self.model, self.blank = model, blank

    def forward(self, batch: Batch) -> LossSum:
        model, copies, target = cast(CtcTranslationModel, self.model), batch["copies"], batch["target"]
        assert target.valid is not None
        logits = model.logits(model.decode(copies, model.encode(batch["source"])))
        return LossSum(ctc_loss(logits, copies.valid, target.values, target.valid.sum(1), self.blank))


class MaskPredictObjective(SmoothedObjective):
    """The loss of the masked tokens, and that of the target lengths.

    R-Drop (2106.14448) averages two passes and adds `rdrop` times their divergence.
    """

    def __init__(self, model: nn.Module, settings: MaskPredictLoss) -> None:
        super().__init__(model, settings)
        self.rdrop = settings.rdrop

    def forward(self, batch: Batch) -> LossSum:
        model, target, labels = cast(MaskPredictModel, self.model), batch["target"], batch["labels"]
        assert labels.positions is not None
        encoded = [model.encode(batch["source"]) for _ in range(2 if self.rdrop else 1)]
        states = (model.decode(target, source).flatten(0, 1)[labels.positions] for source in encoded)
        logits = [model.logits(hidden) for hidden in states]
        losses = [smoothed_cross_entropy(scores, labels.values, smoothing=self.smoothing) for scores in logits]
        loss = torch.stack(losses).mean()
        if self.rdrop:
            loss = loss + self.rdrop * rdrop_divergence(*logits)
        lengths = [
            cross_entropy(model.length_logits(source).float(), batch["length"].values, reduction="sum")
            for source in encoded
        ]
        return LossSum(loss, {"length": torch.stack(lengths).mean()})


def random_places(valid: Tensor, count: Tensor) -> Tensor:
    """(rows, places) bool: `count` (rows, 1) of the valid places of each row, drawn at random."""
    order = torch.rand(valid.shape, device=valid.device).masked_fill(~valid, 2.0).argsort(1)
    return (order.argsort(1) < count) & valid
