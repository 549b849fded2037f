"""Masked words: BERT's pre-training. `Masked` guesses what stands behind <mask>, `Lesson` is what the loop trains."""

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config.run import Run
from ..config.schema import Sides
from ..data.collate import IGNORED, Ids, TokenRows
from ..data.examples import Examples
from ..data.masking import MaskedSampler, Masker
from ..data.rows import add_start_end
from ..data.sampler import sorted_batches
from ..errors import UserError
from ..parts.losses import smoothed_cross_entropy
from ..processors.tokenizers import TrainedTokenizer
from . import encoder
from .base import Objective, build_model, open_lines, open_splits
from .encoder import TOKENIZER, EncoderPredictor, Model, states, tokenizer_of, with_vocab

VERBS = ("encode", "logits", "next_sentence_logits")  # what a family must have for this task
MARK = re.compile(r"\s*(?:<mask>|\[MASK\])")  # a piece brings the space before it along


class MaskedPredictor(EncoderPredictor):
    tokenizer: TrainedTokenizer

    def predict(self, texts: str | Sequence[str], details: bool = False, **decode: Any) -> Any:
        """Each text with its marks, <mask> or [MASK], filled in; with details, the likeliest pieces for each mark."""
        if isinstance(texts, str):
            return self.predict([texts], details, **decode)[0]
        self._need_words()
        how, masker = self.how(decode), Masker(self.tokenizer, self.run.data)
        rows = [self._marked(text, masker.mask) for text in texts]
        if plain := sum(masker.mask not in row for row in rows):
            warnings.warn(f"{plain} of {len(rows)} texts have no <mask> and stay as they are", stacklevel=2)
        found = self.asked(rows, lambda states, _: self.model.logits(states).float().log_softmax(-1))
        return [
            self._filled(text, row, logprobs[: len(row)], how.top, details, masker.mask)
            for text, row, logprobs in zip(texts, rows, found, strict=True)
        ]

    def evaluate(self, sides: Sides | None = None) -> dict[str, Any]:
        """Figures over lines of text, masked always in the same way; without `sides`, over the run's test part."""
        return self.examine(sides)[0]

    def examine(self, sides: Sides | None = None) -> tuple[dict[str, Any], None, list[str]]:
        """What `evaluate` says, of which texts; nothing is written."""
        self._need_words()
        examples = open_lines(self.run, "test", sides)
        examples.require_nonempty("data.test")
        return {"examples": len(examples), **self.figures(examples)}, None, list(examples.texts(0))

    @torch.no_grad()
    def figures(self, examples: Examples) -> dict[str, float]:
        """Nats per masked piece, and the share that is guessed; with data.next_sentence also of the pairs."""
        data, train = self.run.data, self.run.train
        batcher = MaskedSampler(examples, Masker(self.tokenizer, data), data, train, self.model.context)
        items = batcher.encode_all(np.random.default_rng(1))
        nats, hits, follows, count = 0.0, 0, 0, 0
        for batch in sorted_batches([len(item[0]) for item in items], rows=self.run.decode.batch):
            rows = batcher.collate([items[i] for i in batch]).to(self.device)
            assert rows.labels is not None
            seen, asked = states(self.model, rows), rows.labels != IGNORED
            logits, wanted = self.model.logits(seen[asked]), rows.labels[asked]
            nats += float(smoothed_cross_entropy(logits, wanted))
            hits, count = hits + int((logits.argmax(-1) == wanted).sum()), count + len(wanted)
            if rows.next_sentence is not None:
                follows += int((self.model.next_sentence_logits(seen).argmax(-1) == rows.next_sentence).sum())
        loss = nats / max(count, 1)
        told = {"loss": loss, "perplexity": math.exp(min(loss, 700)), "accuracy": hits / max(count, 1)}
        return told | ({"follows": follows / len(items)} if data.next_sentence else {})

    def _need_words(self) -> None:
        if self.run.model.head != "words":
            raise UserError("this model has no head for masked words; it gives embeddings (predict --embed, or .embed)")

    def _marked(self, text: str, mask: int) -> Ids:
        parts = self.tokenizer.encode(MARK.split(text))
        ids = [piece for part in parts for piece in [mask, *part]][1:]
        if len(ids) > self.room:
            warnings.warn(f"a text has more than {self.room} tokens and was cut there (data.max_tokens)", stacklevel=4)
        return add_start_end(self.tokenizer, ids[: self.room])

    def _filled(self, text: str, row: Ids, logprobs: Tensor, top: int, details: bool, mask: int) -> Any:
        places = np.flatnonzero(row == mask)
        best = logprobs[places].topk(min(max(top, 1), logprobs.shape[-1]), dim=-1)
        filled = row.copy()
        filled[places] = best.indices[:, 0].numpy()
        if len(places):
            (text,) = self.tokenizer.decode([filled.tolist()])
        if not details and not top:
            return text
        marks = [
            list(zip(self.tokenizer.pieces(ids), values, strict=True))
            for ids, values in zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)
        ]
        return {"text": text, "masks": marks} if details else [each for mark in marks for each in mark]


class MaskedObjective(Objective):
    """The training side: batches from the data, the loss of each, and figures on the validation part."""

    def __init__(self, system: MaskedPredictor, parts: dict[str, Examples]) -> None:
        self.system, self.run, self.parts, self.model = system, system.run, parts, system.model
        masker = Masker(system.tokenizer, self.run.data)
        self.batcher = MaskedSampler(parts["train"], masker, self.run.data, self.run.train, system.model.context)

    def loss(self, model: Model, batch: TokenRows) -> Tensor:
        """Summed over the masked pieces. What pairs add is their mean, counted once for each masked piece: divided by
        the pieces of the update, both are means, as in the paper."""
        batch = batch.to(self.system.device)
        assert batch.labels is not None
        seen, asked = states(model, batch), batch.labels != IGNORED
        loss = smoothed_cross_entropy(
            model.logits(seen[asked]), batch.labels[asked], smoothing=self.run.train.smoothing
        )
        if batch.next_sentence is None:
            return loss
        return loss + asked.sum() / len(batch.next_sentence) * smoothed_cross_entropy(
            model.next_sentence_logits(seen), batch.next_sentence
        )

    def validate(self, model: Model) -> dict[str, float]:
        return self.system.figures(self.parts["valid"]) if "valid" in self.parts else {}


# --- from a run to these two ---------------------------------------------------------------------------------------


def prepare(run: Run, folder: Path | None, device: torch.device) -> tuple[MaskedObjective, dict[str, Any], Run]:
    """Open the data and learn the tokenizer, or take that of `folder`; nothing is written."""
    if run.data.next_sentence and run.model.token_types < 2:
        raise UserError(
            "data.next_sentence reads two texts in a row and the model knows one kind (model.token_types=1); "
            "expected two, set model.token_types=2 or begin with another start"
        )
    parts = open_splits(run, open_lines)
    tokenizer = tokenizer_of(run, folder, parts["train"])
    run = with_vocab(run, tokenizer, head="words", next_sentence=run.data.next_sentence)
    system = MaskedPredictor(run, build_model(run), tokenizer, device)
    return MaskedObjective(system, parts), {TOKENIZER: tokenizer}, run


def restore(run: Run, folder: Path, device: torch.device) -> MaskedPredictor:
    """What `folder` holds, but for the weights."""
    return MaskedPredictor(run, build_model(run), encoder.load_tokenizer(folder / TOKENIZER), device)


def borrowed(folder: Any, overrides: Mapping[str, Any]) -> MaskedPredictor:
    """What a Hugging Face folder holds."""
    run, device = encoder.borrowed(folder, overrides, "masked")
    return MaskedPredictor(run, folder.model, folder.tokenizer, device)


def sized(run: Run) -> Run:
    return encoder.sized(run, head="words", next_sentence=run.data.next_sentence)
