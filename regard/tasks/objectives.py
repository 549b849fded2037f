"""The objectives of the tasks: modules from a batch to its summed loss."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from ..adapt.ngrams import NGramLabeler, ngrams_of
from ..config.losses import LabelLoss, SmoothedLoss
from ..data.batch import Batch
from ..data.datasets.collate import IGNORED
from ..errors import UserError
from ..families.protocols import CausalModel, EmbeddingModel, LabelModel, MaskedModel, Seq2SeqModel, SpeechModel
from ..parts import Cache, Encoded, Inputs
from ..parts.losses import rdrop_divergence, smoothed_cross_entropy
from ..parts.parallel.ctc import ctc_loss
from ..training.objective import LossSum, Objective, StepObjective


class SmoothedObjective(Objective):
    """A cross-entropy with label smoothing."""

    def __init__(self, model: nn.Module, settings: SmoothedLoss) -> None:
        super().__init__()
        self.model, self.smoothing = model, settings.smoothing


class Seq2SeqObjective(SmoothedObjective):
    """The cross-entropy, summed over the valid target tokens. No logits are computed for padding."""

    def forward(self, batch: Batch) -> LossSum:
        return LossSum(self.target_loss(batch, cast(Seq2SeqModel, self.model).encode(batch["source"])))

    def target_loss(self, batch: Batch, encoded: Encoded) -> Tensor:
        model, labels = cast(Seq2SeqModel, self.model), batch["labels"]
        states = model.decode(batch["target"], encoded)
        if labels.positions is not None:
            states = states.flatten(0, 1)[labels.positions]
        return smoothed_cross_entropy(model.logits(states), labels.values, labels.valid, self.smoothing)


class Seq2SeqCtcObjective(Seq2SeqObjective):
    """The loss of the decoder; with CTC and sound, the weighted mean of both losses over the same target tokens."""

    def __init__(self, model: nn.Module, settings: SmoothedLoss, blank: int) -> None:
        super().__init__(model, settings)
        self.blank = blank

    def forward(self, batch: Batch) -> LossSum:
        model = cast(SpeechModel, self.model)
        encoded, weight = model.encode(batch["source"]), model.ctc_weight
        loss = self.target_loss(batch, encoded)
        if not weight or "transcript" not in batch:
            return LossSum(loss)
        tokens = batch["transcript"]
        assert tokens.valid is not None
        lengths = tokens.valid.sum(1)
        ctc = ctc_loss(model.ctc_logits(encoded), encoded.valid, tokens.values, lengths, self.blank)
        return LossSum((1 - weight) * loss + weight * ctc)


class LabelObjective(SmoothedObjective):
    """The cross-entropy, summed over the texts, each weighted by its label. R-Drop averages two passes and adds
    `rdrop` times their divergence.
    """

    weights: Tensor | None

    def __init__(self, model: nn.Module, settings: LabelLoss, weights: Sequence[float] | None = None) -> None:
        super().__init__(model, settings)
        self.rdrop = settings.rdrop
        self.register_buffer("weights", None if weights is None else torch.tensor(weights), persistent=False)

    def forward(self, batch: Batch) -> LossSum:
        targets, passes = batch["label"].values, 2 if self.rdrop else 1
        logits = [self.logits(batch["text"], targets) for _ in range(passes)]
        loss = torch.stack([self.loss(scores, targets) for scores in logits]).mean()
        return LossSum(loss + self.rdrop * rdrop_divergence(*logits) if self.rdrop else loss)

    def logits(self, text: Inputs, targets: Tensor) -> Tensor:
        """(batch, labels). In training, n-grams leave out the counts of the text itself."""
        if ngrams_of(self.model) is not None and self.model.training:
            counting = cast(NGramLabeler, self.model)
            return counting.label_logits(counting.encode(text), self.multi_hot(targets))
        model = cast(LabelModel, self.model)
        return model.label_logits(model.encode(text))

    def multi_hot(self, targets: Tensor) -> Tensor:
        """(batch, labels) with 1 for each label of a text."""
        return one_hot(targets, cast(nn.Linear, self.model.classes).out_features).float()

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.weights is None:
            return smoothed_cross_entropy(logits, targets, smoothing=self.smoothing)
        losses = cross_entropy(logits.float(), targets, reduction="none", label_smoothing=self.smoothing)
        return (self.weights[targets] * losses).sum()


class MultiLabelObjective(LabelObjective):
    """The mean binary cross-entropy over the labels, summed over the texts. Weights apply to positive targets."""

    def multi_hot(self, targets: Tensor) -> Tensor:
        return targets

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        smooth = targets * (1 - self.smoothing) + self.smoothing / 2
        loss = binary_cross_entropy_with_logits(logits.float(), smooth, pos_weight=self.weights, reduction="sum")
        return loss / targets.size(1)


class RegressionObjective(LabelObjective):
    """The squared error, summed over the texts."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return ((logits.float()[:, 0] - targets) ** 2).sum()


class ImageObjective(SmoothedObjective):
    """The cross-entropy, summed over the images. A mixed image has two labels and the share of the first."""

    def forward(self, batch: Batch) -> LossSum:
        model = cast(LabelModel, self.model)
        logits = model.label_logits(model.encode(batch["image"])).float()
        losses = [cross_entropy(logits, batch["label"].values, label_smoothing=self.smoothing, reduction="none")]
        if "other" not in batch:
            return LossSum(losses[0].sum())
        other = cross_entropy(logits, batch["other"].values, label_smoothing=self.smoothing, reduction="none")
        share = batch["share"].values
        return LossSum((share * losses[0] + (1 - share) * other).sum())


class TagObjective(SmoothedObjective):
    """The cross-entropy, summed over the words; the first token of a word predicts its tag."""

    def forward(self, batch: Batch) -> LossSum:
        model, tags = cast(LabelModel, self.model), batch["tags"].values
        tagged = tags != IGNORED
        logits = model.label_logits(model.encode(batch["text"]))[tagged]
        return LossSum(smoothed_cross_entropy(logits, tags[tagged], smoothing=self.smoothing))


class MaskedObjective(SmoothedObjective):
    """The loss of masked tokens and that of sentence pairs, each summed. Each becomes a mean, as in BERT."""

    def forward(self, batch: Batch) -> LossSum:
        model, labels = cast(MaskedModel, self.model), batch["labels"].values
        encoded, masked = model.encode(batch["text"]), labels != IGNORED
        loss = smoothed_cross_entropy(model.logits(encoded.states[masked]), labels[masked], smoothing=self.smoothing)
        if "next_sentence" not in batch:
            return LossSum(loss)
        classes = batch["next_sentence"].values
        pairs = smoothed_cross_entropy(model.next_sentence_logits(encoded), classes)
        return LossSum(loss, {"next_sentence": pairs})


@dataclass(frozen=True, eq=False)
class MemoryBatch(Batch):
    """A batch with the memory of the text before it."""

    memory: Cache | None = None


class LanguageObjective(SmoothedObjective):
    """The cross-entropy, summed over the predicted tokens.

    A model with memory has one memory per micro-batch of a step, which carries over to the next step.
    """

    def __init__(self, model: nn.Module, settings: SmoothedLoss) -> None:
        super().__init__(model, settings)
        self.memories: dict[int, Cache] = {}  # by micro-batch number
        self.saved: dict[int, dict[str, Tensor]] = {}  # from a checkpoint: the memories of all processes

    def forward(self, batch: Batch) -> LossSum:
        model, labels = cast(CausalModel, self.model), batch["labels"]
        memory = batch.memory if isinstance(batch, MemoryBatch) else None
        if memory is not None:
            memory.reset(batch["reset"].values)
        logits = model.logits(model.decode(batch["text"], memory))  # (batch, tokens, vocab)
        return LossSum(smoothed_cross_entropy(logits, labels.values, labels.valid, self.smoothing))

    def bind(self, batch: Batch) -> Batch:
        """The batch with its memory. A batch that does not count gets a temporary memory."""
        if "reset" not in batch:
            return batch
        memory = self.memories.get(batch.number) if batch.counted else self._new_memory(len(batch["text"]))
        if memory is None:
            memory = self.memories[batch.number] = self._restored_memory(batch.number, len(batch["text"]))
        if not batch.counted:  # the last batch of a step: the remaining saved memories belong to other processes
            self.saved = {}
        return MemoryBatch(**vars(batch), memory=memory)

    def _restored_memory(self, number: int, rows: int) -> Cache:
        memory = self._new_memory(rows)
        if number in self.saved:
            memory.load_state(self.saved[number])
        if len(memory.lengths) != rows:
            raise UserError(
                f"micro-batch {number + 1} of a step has {rows} rows, and {len(memory.lengths)} have a memory in the "
                "checkpoint; restore train.accumulate"
            )
        return memory

    def _new_memory(self, rows: int) -> Cache:
        memory = cast(CausalModel, self.model).new_memory(rows)
        assert memory is not None
        return memory

    def state(self) -> dict[str, Tensor]:
        """The memories of this process; of all processes right after `load_state`."""
        states = {number: memory.state() for number, memory in self.memories.items()} or self.saved
        return {f"{number}.{name}": tensor for number, tensors in states.items() for name, tensor in tensors.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Load memories. Older checkpoints key them by the first row of a micro-batch; the order is the same."""
        self.memories.clear()
        keys = sorted({int(name.partition(".")[0]) for name in state})
        self.saved = {
            number: {name.partition(".")[2]: tensor for name, tensor in state.items() if name.startswith(f"{key}.")}
            for number, key in enumerate(keys)
        }


MAX_SCALE = 100.0  # of the cosines, as published


class ContrastiveObjective(StepObjective):
    """The loss of CLIP (2103.00020): within a step, each item must identify its text, and each text its item.

    The fields `same_<field>`, if the batch has them, number equal contents. Examples with equal items or equal texts
    are positives of each other and share the probability.
    """

    def __init__(self, model: nn.Module, fields: tuple[str, str]) -> None:
        super().__init__()
        self.model, self.fields = model, fields

    @torch.no_grad()
    def prepare(self) -> None:
        cast(EmbeddingModel, self.model).log_scale.clamp_(max=math.log(MAX_SCALE))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        model, (item, text) = cast(EmbeddingModel, self.model), self.fields
        scale = model.log_scale.exp().repeat(len(batch[item]))
        numbers = {name: batch[name].values for name in map(same_field, self.fields) if name in batch}
        return {item: model.vectors(batch[item]), text: model.vectors(batch[text]), "scale": scale, **numbers}

    def loss(self, features: Mapping[str, Tensor]) -> LossSum:
        items, texts = (features[name].float() for name in self.fields)
        with torch.autocast(items.device.type, enabled=False):  # bf16 has three digits, too few for a scale of 100
            scores = features["scale"].float()[0] * (items @ texts.T)
        return LossSum(contrastive_loss(scores, self.positives(features, len(items))))

    def positives(self, features: Mapping[str, Tensor], count: int) -> Tensor:
        """(count, count) bool: True where an item and a text belong together, such as on the diagonal."""
        positives = torch.eye(count, dtype=torch.bool, device=features["scale"].device)
        items, texts = (features.get(same_field(name)) for name in self.fields)
        for left, right in (
            (items, items),
            (texts, texts),
            (items, texts),
        ):  # an item may be a text, too
            if left is not None and right is not None:
                positives = positives | (left[:, None] == right)
        return positives


def same_field(field: str) -> str:
    """The field of a batch that numbers the contents of `field`: equal contents have equal numbers."""
    return f"same_{field}"


def contrastive_loss(scores: Tensor, positives: Tensor) -> Tensor:
    """The cross-entropy of both directions, halved and summed over the examples (scores: items × texts)."""
    total = scores.new_zeros(())
    for direction, matches in ((scores, positives), (scores.T, positives.T)):
        shares = matches.to(direction.dtype) / matches.sum(1, keepdim=True)
        total = total - (shares * direction.log_softmax(-1)).sum()
    return total / 2
