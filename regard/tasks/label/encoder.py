"""Encoder models: rows of tokens in, one hidden state per token out. Shared by classify, tag and masked."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from ...config.decode import EncoderDecode
from ...config.run import Run, change_settings, changed_decode
from ...config.types import Base
from ...data.datasets.collate import Ids, pad_tokens
from ...data.datasets.rows import add_start_end, max_text_tokens
from ...data.loading.sampler import sorted_batches
from ...data.source import Source
from ...device import resolve_device
from ...errors import UserError
from ...families.protocols import EncoderModel, LabelModel, as_module
from ...look import AttentionView, ViewAxis, Which, record_layers
from ...metrics.labels import paired_accuracy_bootstrap
from ...parts import Encoded, Inputs
from ...parts.pooling import Pooling, pool
from ...processors.base import Processor
from ...processors.labels import LabelProcessor, LabelSet
from ...processors.saved import load_processors
from ...processors.text.processor import TextProcessor
from ...processors.text.tokenizers import MASK, Tokenizer, TrainedTokenizer, train_tokenizer
from ...progress import track
from ..base import (
    Processors,
    build_model,
    find_labels,
    find_tokenizer,
    max_vocab,
    require_tokenizer,
    view_title,
    vocab_size,
    with_model_settings,
)
from ..notices import Notice, cut_text, require_finite, warn_once
from ..predictor import Item, RequestType, ResultType
from ..requests import ClassifyRequest, MaskedRequest, MultiLabelRequest, TagRequest
from ..texts import as_text, as_texts
from .embedding import EmbeddingPredictor
from .results import LabelSetMixin

OTHER_HEADS = {"labels": 0, "next_sentence": False, "pooled": False}  # defaults of settings that other tasks set
CPU_BATCH_TOKENS = 1024  # tokens of a batch on a CPU: with more, intermediate results no longer fit its caches


class EncoderPredictor(EmbeddingPredictor[Item, RequestType, ResultType]):
    """A model with its tokenizer. Batch-invariant: a result never depends on the rest of its batch."""

    model: EncoderModel

    def __init__(self, run: Run, model: EncoderModel, tokenizer: Tokenizer, device: torch.device) -> None:
        self.run, self.tokenizer, self.device = run, tokenizer, device
        self.model = model.to(device).eval()

    @property
    def room(self) -> int:
        """The most tokens of a text that are read; a tuned model may have fewer positions."""
        return max_text_tokens(self.model.context, self.run.data)

    # --- public methods ----------------------------------------------------------------------------------------

    def embed(self, texts: str | Iterable[str], /, **decode: object) -> Tensor:
        """A vector for every text, (texts, width); one text gives one vector. See decode.pooling, decode.normalize."""
        if isinstance(texts, str):
            return self.embed([texts], **decode)[0]
        settings = self.decode_settings(decode)

        def pool_states(encoded: Encoded) -> Tensor:
            return pool(encoded.states.float(), encoded.valid, settings.pooling, settings.normalize)

        pooled = self.map_encoded(self.encode_with_warning(as_texts(texts)), pool_states)
        vectors = torch.stack(pooled) if pooled else torch.zeros(0, self.run.model.width)
        require_finite([float(vectors.sum())])
        return vectors

    def look(self, text: str, target: str | None = None, layer: Which = None) -> AttentionView:
        """The attention weights of every layer while the model reads `text`."""
        if target is not None:
            raise UserError("this model generates no text, so it takes no target; give the text alone")
        if not as_text(text).strip():
            raise UserError("the text is empty and has no attention to show; give a sentence")
        (row,) = self.encode_with_warning([text])
        with record_layers(as_module(self.model), layer) as recorder:
            self.model.encode(self.collate([row]))
        text_axis = ViewAxis.of_tokens("token", self.tokenizer.tokens(row.tolist()))
        return AttentionView.recorded(recorder, {"source": text_axis}, view_title(self.run))

    def state_inputs(self, items: Iterable[Any]) -> list[Inputs]:
        """Each text between START and END; longer texts are cut with a warning."""
        texts = [item if isinstance(item, str) else " ".join(item) for item in items]
        return [Inputs("tokens", torch.tensor(row)[None].long()) for row in self.encode_with_warning(as_texts(texts))]

    @property
    def processors(self) -> dict[str, Processor]:
        """The tokenizer."""
        return {"text": TextProcessor(self.tokenizer)}

    # --- internals ---------------------------------------------------------------------------------------------

    def encode_texts(self, texts: Sequence[Any]) -> tuple[list[Ids], list[tuple[Notice, ...]]]:
        """Each text between START and END, and its notices: longer texts are cut."""
        token_ids, room = self.tokenizer.encode(list(texts)), self.room
        cut = cut_text(room)
        notices: list[tuple[Notice, ...]] = [(cut,) if len(ids) > room else () for ids in token_ids]
        return [add_start_end(self.tokenizer, ids[:room]) for ids in token_ids], notices

    def encode_with_warning(self, texts: Sequence[Any]) -> list[Ids]:
        """Each text between START and END; longer texts are cut with a warning."""
        rows, notices = self.encode_texts(texts)
        warn_once(chain(*notices), len(rows), stacklevel=4)
        return rows

    def top(self, request: ClassifyRequest | MultiLabelRequest | TagRequest | MaskedRequest) -> int:
        """The number of candidates that a request asks for; by default decode.top."""
        top = int(self.run.decode.top) if request.top is None else request.top
        if top < 0:
            raise UserError(f"a request has top={top}; expected 0 or more")
        return top

    def collate(self, rows: Sequence[Ids]) -> Inputs:
        """Rows of tokens as one batch on the device."""
        return pad_tokens(rows, self.tokenizer.pad).to(self.device)

    @torch.no_grad()
    def map_encoded(
        self, rows: Sequence[Ids], function: Callable[[Encoded], Tensor], batch: int | None = None
    ) -> list[Tensor]:
        """Apply `function` to the encoder's output for each row, in order. Rows of similar length share a batch."""
        outputs: dict[int, Tensor] = {}
        tokens = CPU_BATCH_TOKENS if self.device.type == "cpu" else 0
        batches = sorted_batches([len(row) for row in rows], tokens, batch or self.run.decode.batch)
        for indices in track(batches, "texts", len(rows), len):
            text = self.collate([rows[i] for i in indices])
            results = function(self.model.encode(text)).float().cpu()
            outputs |= dict(zip(indices, results, strict=True))
        return [outputs[i] for i in range(len(rows))]

    def decode_settings(self, decode: Mapping[str, object]) -> Any:
        """The run's decode.*, changed by `decode`."""
        settings: EncoderDecode = changed_decode(self.run, decode)
        return settings


class LabelPredictor(LabelSetMixin, EncoderPredictor[Item, RequestType, ResultType]):
    """An encoder whose head predicts labels."""

    model: LabelModel
    paired_test = staticmethod(paired_accuracy_bootstrap)
    label_field: str  # of its examples

    def __init__(
        self, run: Run, model: LabelModel, tokenizer: Tokenizer, labels: LabelSet, device: torch.device
    ) -> None:
        super().__init__(run, model, tokenizer, device)
        self.labels = labels

    @classmethod
    def from_run_folder(cls, run: Run, folder: Path, device: torch.device) -> Self:
        """The predictor of a run folder, without the weights."""
        processors = load_processors(folder)
        labels = find_labels(processors, cls.label_field) or LabelSet({})
        if len(labels) != run.model.labels:
            raise UserError(
                f"{folder / LabelProcessor.file} has {len(labels)} labels and the model {run.model.labels}; it belongs "
                "to another run, restore it"
            )
        return cls(run, build_model(run), require_tokenizer(processors), labels, device)

    @classmethod
    def from_folder(cls, folder: "PretrainedEncoder", overrides: Mapping[str, object], task: str) -> Self:
        """The predictor of a Hugging Face folder."""
        run, device = run_of_folder(folder, overrides, task)
        return cls(run, folder.model, folder.tokenizer, LabelSet(dict.fromkeys(folder.labels, 0)), device)

    def label_logprobs(self, rows: Sequence[Ids], batch: int | None = None) -> list[Tensor]:
        """(labels,) of each row; of tags (tokens, labels)."""
        return self.map_encoded(rows, lambda encoded: self.model.label_logits(encoded).float().log_softmax(-1), batch)


# --- from a run to its tokenizer and sizes ---------------------------------------------------------------------------


def find_or_train_tokenizer(
    run: Run, processors: Processors, train: Source, text_fields: tuple[int, ...] = (0,)
) -> Tokenizer:
    """The saved tokenizer, or one trained on the texts of these fields."""
    return find_tokenizer(processors) or train_tokenizer(run.tokenizer, train.texts(*text_fields), control=(MASK,))


class PretrainedEncoder(Protocol):
    """The content of a Hugging Face folder with an encoder."""

    config: Base
    model: Any
    tokenizer: TrainedTokenizer
    labels: tuple[str, ...]
    problem_type: str
    max_tokens: int
    pooling: Pooling
    normalize: bool


def run_of_folder(
    folder: PretrainedEncoder, overrides: Mapping[str, object], task: str, **data: object
) -> tuple[Run, torch.device]:
    """A run that describes a Hugging Face folder, and its device; `data` are settings of its data."""
    decode = {"pooling": folder.pooling, "normalize": folder.normalize}
    run = Run(task=task, model=folder.config, data={"max_tokens": folder.max_tokens, **data}, decode=decode)
    run = change_settings(run, overrides)
    return run, resolve_device(run.device)


def with_vocab(run: Run, tokenizer: Tokenizer, **settings: object) -> Run:
    """The run with the vocabulary size of its tokenizer; a pretrained model may have a larger one."""
    return _with_head(run, vocab_size(run, tokenizer), settings)


def size_without_data(run: Run, **settings: object) -> Run:
    """The run with the largest vocabulary that its tokenizer may learn."""
    return _with_head(run, max_vocab(run), settings)


def _with_head(run: Run, vocab: int, settings: Mapping[str, object]) -> Run:
    fields = type(run.model).model_fields
    defaults = {name: value for name, value in OTHER_HEADS.items() if name in fields}
    changes = {
        name: value for name, value in settings.items() if name != "head" or name in fields
    }  # it may have only one
    return with_model_settings(run, **{"vocab": vocab, **defaults, **changes})
