"""Encoder models: rows of tokens in, one hidden state per token out. Shared by classify, tag and masked."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import torch

from ...config.data.base import Data
from ...config.decode import EncoderDecode
from ...config.run import AnyRun, Run, RunType, change_settings, changed_decode
from ...config.types import Base
from ...data.datasets.rows import max_text_tokens
from ...data.source import Source
from ...decode.engine.jobs import Forward, Read
from ...device import resolve_device
from ...errors import UserError
from ...families.protocols import EncoderModel, LabelModel
from ...look import AttentionView, Which
from ...messages.media import Item as TextItem
from ...messages.verbs import EmbedRequest
from ...parts import Inputs
from ...parts.pooling import Pooling
from ...processors.base import Array, Processor
from ...processors.labels import LabelProcessor, LabelSet
from ...processors.text.processor import TextProcessor
from ...processors.text.tokenizers import MASK, Tokenizer, TrainedTokenizer, train_tokenizer
from ..base import Processors, find_labels, find_tokenizer, max_vocab, vocab_size, with_model_settings
from ..predictor import RequestType, ResultType
from ..texts import as_text, as_texts
from .embedding import Embedded, EmbeddingPredictor, PoolingHeads, refuse_target, text_view
from .texts import TextEncoder, item_texts

POOLINGS: tuple[Pooling, ...] = ("mean", "first", "max")  # of decode.pooling
Text = TypeVar("Text", bound=Sequence[str])  # a text, or several: the words of a sentence, a pair of texts
OTHER_HEADS = {"labels": 0, "next_sentence": False, "pooled": False}  # defaults of settings that other tasks set

EncoderRun: TypeAlias = Run[Data, EncoderDecode]


class EncoderPredictor(EmbeddingPredictor[Text, RequestType, ResultType]):
    """A model with its tokenizer. Batch-invariant: a result never depends on the rest of its batch."""

    run: EncoderRun
    model: EncoderModel

    def __init__(self, run: EncoderRun, model: EncoderModel, tokenizer: Tokenizer, device: torch.device) -> None:
        self.run, self.tokenizer, self.device = run, tokenizer, device
        self.model = model.to(device).eval()

    @cached_property
    def texts(self) -> TextEncoder:
        """How texts are read; a tuned model may have fewer positions."""
        return TextEncoder(self.tokenizer, max_text_tokens(self.model.context, self.run.data))

    @property
    def processors(self) -> dict[str, Processor]:
        """The tokenizer."""
        return {"text": TextProcessor(self.tokenizer)}

    @cached_property
    def pooling_heads(self) -> PoolingHeads:
        """The passes for embeddings."""
        return PoolingHeads(POOLINGS, self.texts.collate)

    def embed_requests(self, items: Iterable[Text], **decode: object) -> list[EmbedRequest]:
        settings = changed_decode(self.run, decode)
        return [EmbedRequest(TextItem(text), settings.pooling, settings.normalize) for text in as_texts(items)]

    async def vector(self, request: EmbedRequest) -> Embedded:
        head = self.pooling_heads.of(request, self.run.decode.pooling, self.run.decode.normalize)
        text = await Read(self.texts.read, item_texts(request.item))
        return Embedded(await Forward(head, text.row), text.notices)

    async def view(self, item: Text, target: str | None = None, layer: Which = None) -> AttentionView:
        """The attention weights of every layer while the model reads a text."""
        refuse_target(target)
        if not (text := as_text(item)).strip():
            raise UserError("the text is empty and has no attention to show; give a sentence")
        return await text_view(self, self.texts, text, layer)

    def state_inputs(self, items: Iterable[Text]) -> list[Inputs]:
        """Each text between START and END; longer texts are cut with a warning."""
        texts = [item if isinstance(item, str) else " ".join(item) for item in items]
        return [Inputs("tokens", torch.tensor(row)[None].long()) for row in self.texts.rows(as_texts(texts))]


def label_logprobs(model: LabelModel, inputs: Inputs) -> Iterable[Array]:
    """(labels,) of every row; of tags (tokens, labels)."""
    logprobs: Array = model.label_logits(model.encode(inputs)).float().log_softmax(-1).cpu().numpy()
    return logprobs


def labels_of_folder(folder: "PretrainedEncoder") -> LabelSet:
    """The labels of a Hugging Face folder."""
    return LabelSet(dict.fromkeys(folder.labels, 0))


def require_labels(run: Run, folder: Path, processors: Processors, field: str) -> LabelSet:
    """The labels of a run folder, which must be those of its model."""
    labels = find_labels(processors, field) or LabelSet({})
    if len(labels) != run.model.labels:
        raise UserError(
            f"{folder / LabelProcessor.file} has {len(labels)} labels and the model {run.model.labels}; it belongs "
            "to another run, restore it"
        )
    return labels


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
) -> tuple[AnyRun, torch.device]:
    """A run that describes a Hugging Face folder, and its device; `data` are settings of its data."""
    decode = {"pooling": folder.pooling, "normalize": folder.normalize}
    run: AnyRun = Run(task=task, model=folder.config, data={"max_tokens": folder.max_tokens, **data}, decode=decode)
    run = change_settings(run, overrides)
    return run, resolve_device(run.device)


def with_vocab(run: RunType, tokenizer: Tokenizer, **settings: object) -> RunType:
    """The run with the vocabulary size of its tokenizer; a pretrained model may have a larger one."""
    return _with_head(run, vocab_size(run, tokenizer), settings)


def size_without_data(run: RunType, **settings: object) -> RunType:
    """The run with the largest vocabulary that its tokenizer may learn."""
    return _with_head(run, max_vocab(run), settings)


def _with_head(run: RunType, vocab: int, settings: Mapping[str, object]) -> RunType:
    fields = type(run.model).model_fields
    defaults = {name: value for name, value in OTHER_HEADS.items() if name in fields}
    changes = {
        name: value for name, value in settings.items() if name != "head" or name in fields
    }  # it may have only one
    return with_model_settings(run, **{"vocab": vocab, **defaults, **changes})
