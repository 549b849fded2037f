"""Masked language modeling, the pre-training of BERT. The predictor fills in <mask>."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...config.data.base import DataFiles
from ...config.run import changed_decode
from ...data.datasets.collate import IGNORED
from ...data.datasets.masking import MaskedDataset, Masker
from ...data.datasets.rows import add_start_end
from ...data.loading.loader import Loader
from ...data.loading.sampler import sorted_batches
from ...data.source import Source
from ...decode.engine.answer import Emit
from ...decode.engine.jobs import Forward, Head, Read
from ...errors import UserError
from ...families.protocols import MaskedModel, as_module
from ...messages.labels import MaskedRequest, MaskedResult, TokenProbability
from ...parts import Inputs
from ...parts.losses import smoothed_cross_entropy
from ...processors.saved import load_processors
from ...processors.text.tokenizers import TrainedTokenizer
from ..base import Metrics, Processors, TrainingJob, build_model, open_lines, open_splits, require_tokenizer
from ..label import encoder
from ..label.encoder import EncoderPredictor, PretrainedEncoder, find_or_train_tokenizer, run_of_folder, with_vocab
from ..label.results import top_of
from ..notices import Notice, cut_masked, no_mask, require_finite
from ..objectives import MaskedObjective
from ..task import TEXT, Task
from ..texts import as_texts
from .settings import MaskedRun

TASK = Task("masked", TEXT, "masked")
EVALUATION_SEED = 1  # of the one masking that evaluations share
MASK_PATTERN = re.compile(r"\s*(?:<mask>|\[MASK\])")  # a token includes the space before it


class MaskedPredictor(EncoderPredictor[str, MaskedRequest, MaskedResult]):
    """Each text with its <mask> or [MASK] filled in. decode.top gives the likeliest tokens of all masks instead."""

    run: MaskedRun
    model: MaskedModel
    tokenizer: TrainedTokenizer
    request_type, result_type = MaskedRequest, MaskedResult

    def require_head(self) -> None:
        """Refuse a model that has no head for masked words."""
        if self.run.model.head != "words":
            raise UserError("this model has no head for masked words; it gives embeddings (predict --embed, or .embed)")

    @cached_property
    def mask(self) -> int:
        """The token of a mask."""
        self.require_head()
        return Masker(self.tokenizer, self.run.data).mask

    @cached_property
    def head(self) -> Head[Tensor]:
        """The pass for masks."""
        return Head(self.texts.collate, partial(mask_logprobs, self.mask))

    def requests(self, items: Iterable[str], details: bool = False, **decode: object) -> list[MaskedRequest]:
        self.require_head()
        top = changed_decode(self.run, decode).top if decode else None
        return [MaskedRequest(text, top) for text in as_texts(items)]

    async def answer(self, request: MaskedRequest, emit: Emit | None = None) -> MaskedResult:
        top = max(top_of(request, self.run.decode), 1)
        ids: list[int] = await Read(self.encode_masked, request.text)
        row = add_start_end(self.tokenizer, ids[: self.texts.room])
        notices: tuple[Notice, ...] = (cut_masked(self.texts.room),) if len(ids) > self.texts.room else ()
        positions = np.flatnonzero(row == self.mask)
        if not len(positions):
            return MaskedResult(request.text, (), notices=(*notices, no_mask()))
        logprobs = await Forward(self.head, row)
        best = logprobs.topk(min(top, logprobs.size(-1)), dim=-1)
        require_finite([float(best.values.sum())])
        row[positions] = best.indices[:, 0].numpy()
        (text,) = self.tokenizer.decode([row.tolist()])
        masks = tuple(
            tuple(map(TokenProbability, self.tokenizer.tokens(ids), values))
            for ids, values in zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)
        )
        return MaskedResult(text, masks, notices=notices)

    def encode_masked(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of texts with <mask>."""
        parts = [MASK_PATTERN.split(text) for text in texts]
        encoded = iter(self.tokenizer.encode(list(chain.from_iterable(parts))))
        rows = [[next(encoded) for _ in text] for text in parts]
        return [[token for part in row for token in (self.mask, *part)][1:] for row in rows]

    def plain_result(self, request: MaskedRequest, result: MaskedResult) -> str | list[tuple[str, float]]:
        if not top_of(request, self.run.decode):
            return result.text
        return [(candidate.token, candidate.probability) for candidates in result.masks for candidate in candidates]

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, None, list[str]]:
        """The metrics of `evaluate`, None because it predicts no texts, and the texts."""
        self.require_head()
        examples = open_lines(self.run, "test", files)
        examples.require_nonempty("data.test")
        metrics = self.metrics(examples)
        require_finite([metrics["loss"]])
        return {"examples": len(examples), **metrics}, None, list(examples.texts(0))

    @torch.no_grad()
    def metrics(self, examples: Source) -> dict[str, float]:
        """Nats per masked token and their accuracy; with data.next_sentence also the accuracy of the pairs."""
        data, train = self.run.data, self.run.train
        dataset = MaskedDataset(examples, Masker(self.tokenizer, data), data, train, self.model.context)
        items = dataset.encode_all(EVALUATION_SEED)
        nats, correct, follows, count = 0.0, 0, 0, 0
        for batch in sorted_batches([len(item[0]) for item in items], rows=self.run.decode.batch):
            rows = dataset.collate([items[i] for i in batch]).to(self.device)
            encoded, labels = self.model.encode(rows["text"]), rows["labels"].values
            masked = labels != IGNORED
            logits, targets = self.model.logits(encoded.states[masked]), labels[masked]
            nats += float(smoothed_cross_entropy(logits, targets))
            correct, count = correct + int((logits.argmax(-1) == targets).sum()), count + len(targets)
            if "next_sentence" in rows:
                classes = self.model.next_sentence_logits(encoded).argmax(-1)
                follows += int((classes == rows["next_sentence"].values).sum())
        loss = nats / max(count, 1)
        metrics = {"loss": loss, "perplexity": math.exp(min(loss, 700)), "accuracy": correct / max(count, 1)}
        return metrics | ({"follows": follows / len(items)} if data.next_sentence else {})

    def masked_row(self, text: str) -> list[int]:
        """The tokens of a text with <mask>, between START and END."""
        (ids,) = self.encode_masked([text])
        if len(ids) > self.texts.room:
            raise UserError(f"the text has {len(ids)} tokens, and the model reads {self.texts.room}; shorten it")
        row: list[int] = add_start_end(self.tokenizer, ids).tolist()
        return row


def mask_logprobs(mask: int, model: MaskedModel, inputs: Inputs) -> Iterable[Tensor]:
    """(masks, vocab) of every row."""
    masked = inputs.values == mask
    logprobs = model.logits(model.encode(inputs).states[masked]).float().log_softmax(-1).cpu()
    return torch.split(logprobs, masked.sum(1).tolist())


class MaskedJob(TrainingJob):
    """Lines with masked tokens."""

    run: MaskedRun
    predictor: MaskedPredictor
    splits: Mapping[str, Source]

    def __init__(self, predictor: MaskedPredictor, splits: dict[str, Source]) -> None:
        self.predictor, self.run, self.splits = predictor, predictor.run, splits
        data, train, model = self.run.data, self.run.train, predictor.model
        self.objective = MaskedObjective(as_module(model), train.objective)
        masker = Masker(predictor.tokenizer, data)
        self.loader = Loader.of(MaskedDataset(splits["train"], masker, data, train, model.context))

    def validate(self) -> dict[str, float]:
        return self.predictor.metrics(self.splits["valid"]) if "valid" in self.splits else {}


# --- construction --------------------------------------------------------------------------------------------------


def prepare(run: MaskedRun, processors: Processors, device: torch.device, folder: Path | None = None) -> MaskedJob:
    """Open the data and train a tokenizer that is not kept; writes no file."""
    if run.data.next_sentence and run.model.token_types < 2:
        raise UserError(
            "data.next_sentence needs two token types and model.token_types is 1; "
            "set model.token_types=2 or start from another model"
        )
    splits = open_splits(run, open_lines)
    tokenizer = find_or_train_tokenizer(run, processors, splits["train"])
    run = with_vocab(run, tokenizer, head="words", next_sentence=run.data.next_sentence)
    predictor = MaskedPredictor(run, build_model(run), tokenizer, device)
    return MaskedJob(predictor, splits)


def restore(run: MaskedRun, folder: Path, device: torch.device) -> MaskedPredictor:
    """The predictor of a run folder, without the weights."""
    return MaskedPredictor(run, build_model(run), require_tokenizer(load_processors(folder)), device)


def from_folder(folder: PretrainedEncoder, overrides: Mapping[str, object]) -> MaskedPredictor:
    """The predictor of a Hugging Face folder."""
    run, device = run_of_folder(folder, overrides, "masked")
    return MaskedPredictor(run, folder.model, folder.tokenizer, device)


def size_without_data(run: MaskedRun) -> MaskedRun:
    """The run with the sizes of a model without data."""
    return encoder.size_without_data(run, head="words", next_sentence=run.data.next_sentence)
