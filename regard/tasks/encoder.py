"""Models that only read: rows of tokens in, a state per token out. What classifiers, taggers and masked words share."""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from ..config.run import Run, change_settings
from ..config.schema import EncoderDecode
from ..data.collate import Ids, TokenRows, pad_rows, valid_mask
from ..data.examples import Examples
from ..data.rows import add_start_end, max_text_tokens
from ..data.sampler import sorted_batches
from ..errors import UserError
from ..look import SelfAttentionView, record_attention
from ..metrics.labels import paired_bootstrap
from ..parts import Mask
from ..parts.pooling import pool
from ..processors.labels import LabelSet
from ..processors.tokenizers import MASK, Tokenizer, TrainedTokenizer, load_tokenizer, train_tokenizer
from .base import build_model, with_model_settings

Model = Any  # an encoder: encode, and what its head says

TOKENIZER, LABELS = "tokenizer.json", "labels.json"
OTHERS = {"labels": 0, "next_sentence": False, "pooled": False}  # of other tasks, where the family has them
CACHED = 1024  # tokens at once on a CPU: with more, what lies between two maps no longer stays near the cores


class EncoderPredictor:
    """A model with its tokenizer. It makes no difference to a text which others are read with it."""

    sides = 1  # of an example that is scored

    def __init__(self, run: Run, model: Model, tokenizer: Tokenizer, device: torch.device) -> None:
        self.run, self.tokenizer, self.device = run, tokenizer, device
        self.model: Model = model.to(device).eval()

    @property
    def room(self) -> int:
        """Tokens of a text that are read; a tuned model may have fewer places."""
        return max_text_tokens(self.model.context, self.run.data)

    # --- what people ask ---------------------------------------------------------------------------------------

    def embed(self, texts: str | Sequence[str], **decode: Any) -> Any:
        """A vector for every text, (texts, width); one text gives one. decode.pooling and decode.normalize say how."""
        if isinstance(texts, str):
            return self.embed([texts], **decode)[0]
        how = self.how(decode)

        rows = self.encoded(texts)
        found = self.asked(rows, lambda states, rows: pool(states.float(), rows.valid, how.pooling, how.normalize))
        return torch.stack(found) if found else torch.zeros(0, self.run.model.width)

    def similar(self, queries: str | Sequence[str], texts: Sequence[str] | Tensor, **decode: Any) -> Any:
        """For every query the places of the texts and their cosines with it, the likest first; decode.top: so many.
        Instead of texts, their vectors of length 1 will do."""
        if isinstance(queries, str):
            return self.similar([queries], texts, **decode)[0]
        if not len(texts):
            raise UserError("there is no text to compare with; give a file that has at least one line")
        how, decode = self.how(decode), {**decode, "normalize": True}
        others = texts if isinstance(texts, Tensor) else self.embed(texts, **decode)
        best = (self.embed(queries, **decode) @ others.T).topk(min(how.top or len(texts), len(texts)), dim=-1)
        return [
            list(zip(places, cosines, strict=True))
            for places, cosines in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def look(self, text: str, target: str | None = None) -> SelfAttentionView:
        """Where every attention looks while the model reads `text`."""
        if target is not None:
            raise UserError("this model writes nothing, so there is no target to make it say; give the text alone")
        if not text.strip():
            raise UserError("there is nothing to look at in an empty text; give a sentence")
        (row,) = self.encoded([text])
        with record_attention(self.model) as maps, torch.no_grad():
            self.states(self.rows([row]))
        pieces = self.tokenizer.pieces(row.tolist())
        return SelfAttentionView(pieces, {path: weights[0].cpu() for path, weights in maps.items()})

    def score(self, texts: Any, targets: Any = None, details: bool = False) -> Any:
        raise UserError(f"task {self.run.task} gives no probability of one text given another; use eval or predict")

    @staticmethod
    def ensemble(systems: Mapping[str, Any]) -> Any:
        raise UserError(f"{' and '.join(systems)} cannot be asked together; ensembles are of models that write texts")

    @property
    def tokenizers(self) -> dict[str, Any]:
        """By the name of the file that a run keeps each in."""
        return {TOKENIZER: self.tokenizer}

    # --- how it is done ----------------------------------------------------------------------------------------

    def encoded(self, texts: Sequence[str]) -> list[Ids]:
        """Each text between START and END; one that is too long is cut, and that is said."""
        found = self.tokenizer.encode(list(texts))
        if long := sum(len(ids) > self.room for ids in found):
            warnings.warn(
                f"{long} of {len(found)} texts have more than {self.room} tokens and were cut there "
                "(data.max_tokens, and what the model has positions for)",
                stacklevel=3,
            )
        return [add_start_end(self.tokenizer, ids[: self.room]) for ids in found]

    def rows(self, rows: Sequence[Ids]) -> TokenRows:
        return TokenRows(pad_rows(rows, self.tokenizer.pad), valid_mask(rows)).to(self.device)

    def states(self, rows: TokenRows) -> Tensor:
        return states(self.model, rows)

    @torch.no_grad()
    def asked(self, rows: Sequence[Ids], ask: Callable[[Tensor, TokenRows], Tensor]) -> list[Tensor]:
        """What `ask` makes of the states of each row, in order; rows of like lengths are read together."""
        found: dict[int, Tensor] = {}
        tokens = CACHED if self.device.type == "cpu" else 0
        for batch in sorted_batches([len(row) for row in rows], tokens, self.run.decode.batch):
            together = self.rows([rows[i] for i in batch])
            answers = ask(self.states(together), together).float().cpu()
            found |= dict(zip(batch, answers, strict=True))
        return [found[i] for i in range(len(rows))]

    def how(self, decode: Mapping[str, Any]) -> EncoderDecode:
        chosen: EncoderDecode = change_settings(self.run, {"decode": decode}).decode if decode else self.run.decode
        return chosen


class LabelPredictor(EncoderPredictor):
    """A reader whose model says labels."""

    paired = staticmethod(paired_bootstrap)

    def __init__(self, run: Run, model: Model, tokenizer: Tokenizer, labels: LabelSet, device: torch.device) -> None:
        super().__init__(run, model, tokenizer, device)
        self.labels = labels

    @classmethod
    def restored(cls, run: Run, folder: Path, device: torch.device) -> Self:
        """What `folder` holds, but for the weights."""
        labels = LabelSet.load(folder / LABELS)
        if len(labels) != run.model.labels:
            raise UserError(
                f"{folder / LABELS} has {len(labels)} labels and the model {run.model.labels}; it belongs to another "
                "run, restore it"
            )
        return cls(run, build_model(run), load_tokenizer(folder / TOKENIZER), labels, device)

    @classmethod
    def borrowed(cls, folder: Any, overrides: Mapping[str, Any], task: str) -> Self:
        """What a Hugging Face folder holds."""
        run, device = borrowed(folder, overrides, task)
        return cls(run, folder.model, folder.tokenizer, LabelSet(dict.fromkeys(folder.labels, 0)), device)

    def logprobs_of(self, rows: Sequence[Ids]) -> list[Tensor]:
        """(labels,) of each row; of tags (tokens, labels)."""
        return self.asked(
            rows, lambda states, rows: self.model.label_logits(states, rows.valid).float().log_softmax(-1)
        )

    def best(self, logprobs: Tensor) -> list[str]:
        """The likeliest label of each, (…, labels)."""
        return [self.labels.names[number] for number in logprobs.argmax(-1).tolist()]

    def ranked(self, logprobs: Tensor, top: int = 0) -> list[tuple[str, float]]:
        """The labels with their probabilities, the likeliest first; `top` of them, or all."""
        order = logprobs.exp().sort(descending=True, stable=True)
        chosen = slice(top or len(self.labels))
        names = [self.labels.names[number] for number in order.indices[chosen].tolist()]
        return list(zip(names, order.values[chosen].tolist(), strict=True))

    def majority(self, right: Sequence[str]) -> dict[str, Any]:
        """What the most frequent label of the training data reaches; nothing where nobody knows it."""
        if not any(self.labels.counts.values()):
            return {}
        label = self.labels.majority
        return {"majority": sum(each == label for each in right) / len(right), "majority label": label}

    def unseen(self, right: Sequence[str]) -> dict[str, str]:
        """A figure that names the right labels which nobody could say; nothing where there is none."""
        counts = Counter(label for label in right if label not in self.labels.ids)
        told = ", ".join(f"{label} ({count})" for label, count in counts.items())
        return {"unseen labels": told} if told else {}


def states(model: Model, rows: TokenRows) -> Tensor:
    """(batch, tokens, width)"""
    token_types = {} if rows.token_types is None else {"token_types": rows.token_types}  # not every family has them
    found: Tensor = model.encode(rows.tokens, Mask(key_valid=rows.valid), **token_types)
    return found


# --- from a run to its tokenizer and sizes ---------------------------------------------------------------------------


def tokenizer_of(run: Run, folder: Path | None, train: Examples) -> TrainedTokenizer:
    """The tokenizer in a folder, or one that is learnt from the texts."""
    return (
        load_tokenizer(folder / TOKENIZER)
        if folder
        else train_tokenizer(run.tokenizer, train.texts(0), control=(MASK,))
    )


def borrowed(folder: Any, overrides: Mapping[str, Any], task: str) -> tuple[Run, torch.device]:
    """The run that would have made a Hugging Face folder, and the device to use it on."""
    from ..device import resolve_device

    decode = {"pooling": folder.pooling, "normalize": folder.normalize}
    run = Run(task=task, model=folder.config, data={"max_tokens": folder.max_tokens}, decode=decode)
    run = change_settings(run, overrides)
    return run, resolve_device(run.device)


def with_vocab(run: Run, tokenizer: Tokenizer, **settings: Any) -> Run:
    """The run with as many tokens as its tokenizer has; a model that is borrowed may have room for more."""
    vocab = max(tokenizer.size, run.model.vocab if run.start else 0)
    others = {name: value for name, value in OTHERS.items() if name in type(run.model).model_fields}
    return with_model_settings(run, **{"vocab": vocab, **others, **settings})


def sized(run: Run, **settings: Any) -> Run:
    """The run as it would be if its tokenizer learnt as much as it may."""
    return with_model_settings(run, vocab=run.model.vocab or run.tokenizer.vocab, **settings)
