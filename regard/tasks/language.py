"""Language: the text so far in, the next token out. `Writer` is what people use, `Lesson` is what the loop trains."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config.run import Run
from ..config.schema import Sides, TextData
from ..data.corpus import ContiguousSampler, Corpus, TextWindow, WindowSampler
from ..data.documents import Documents, open_documents
from ..data.sampler import Step
from ..decode import Ensemble, Filter, Suppress
from ..errors import UserError
from ..look import SelfAttentionView, record_attention
from ..parts import Cache
from ..parts.losses import smoothed_cross_entropy
from ..processors.tokenizers import Tokenizer, TrainedTokenizer, load_tokenizer, train_tokenizer
from ..synthetic.stdlib import stdlib_documents
from .base import build_model, with_head, with_model_settings
from .lm_scoring import corpus_nll, lm_metrics, logprobs, states
from .prompt_generator import Continuation, PromptGenerator

Model = Any  # a language model: decode, logits, start, step, recall, context
START, END = "□", "■"  # how details and pictures show these symbols
PARTS = 16  # of a validation text that are read side by side by a model with memory
VERBS = ("decode", "logits", "start", "step", "new_memory")  # what a family must have for this task
HEAD = "next"  # of a family with several: what the model says


class LanguagePredictor(PromptGenerator):
    """A model with its vocabulary. It makes no difference to a text which others are continued or scored with it."""

    sides, field = 1, "prompt"  # an example is one text; a JSON record has it there

    def __init__(
        self,
        run: Run,
        model: Model,
        tokenizer: Tokenizer,
        device: torch.device,
        filters: tuple[Filter, ...] | None = None,
        folder: Path | None = None,
    ) -> None:
        """`folder` takes encoded texts if data.cache cannot."""
        self.run, self.tokenizer, self.device, self.folder = run, tokenizer, device, folder
        self.model: Model = model.to(device).eval()
        never = [each for each in (tokenizer.pad, tokenizer.start) if each != tokenizer.end]
        self.filters = (Suppress(never),) if filters is None else filters

    @property
    def tokenizers(self) -> dict[str, Any]:
        """By the name of the file that a run keeps each in."""
        return {NAME: self.tokenizer}

    # --- what people ask ---------------------------------------------------------------------------------------

    def predict(self, prompts: str | Sequence[str], details: bool = False, **decode: Any) -> Any:
        """How every prompt goes on, in order; one prompt gives one text, decode.nbest above 1 a list of texts for each.
        `decode` takes the names of decode.*."""
        if isinstance(prompts, str):
            return self.predict([prompts], details, **decode)[0]
        how = self._how(decode)
        ids = self._prompts(prompts, how)
        found = self.continued(prompts, ids, how)
        if details:
            return self._records(ids, found)
        texts = [[said.text for said in some] for some in found]
        return [some if how.nbest > 1 else (some or [""])[0] for some in texts]

    def score(self, texts: str | Sequence[str], details: bool = False) -> Any:
        """ln P(text), from its beginning to its end, END counted; with details also per token."""
        if isinstance(texts, str):
            return self.score([texts], details)[0]
        ids = self.encoded(texts)
        found = self.logprobs([[self.opening, *each, self.tokenizer.end] for each in ids])
        totals = [math.fsum(each) for each in found]
        if not details:
            return totals
        return [
            {"score": total, "pieces": [*self.tokenizer.pieces(each), END], "logprobs": some}
            for total, each, some in zip(totals, ids, found, strict=True)
        ]

    def look(self, text: str, target: str | None = None) -> SelfAttentionView:
        """Where every attention looks while the model reads `text`, and `target` behind it."""
        if not text.strip():
            raise UserError("there is nothing to look at in an empty text; give a sentence")
        (ids,) = self.encoded([text + (target or "")])
        self.refuse_long(len(ids) + 1, "the text")
        seen = self.model.members[0] if isinstance(self.model, Ensemble) else self.model
        with record_attention(seen) as maps, torch.no_grad():
            seen.decode(torch.tensor([[self.opening, *ids]], device=self.device))
        return SelfAttentionView(
            [START, *self.tokenizer.pieces(ids)], {path: each[0].cpu() for path, each in maps.items()}
        )

    def evaluate(self, sides: Sides | None = None) -> dict[str, Any]:
        """Figures over running text; without `sides`, over the run's test part."""
        return self.examine(sides)[0]

    def examine(self, sides: Sides | None = None) -> tuple[dict[str, Any], None, dict[str, int]]:
        """What `evaluate` says; None, for nothing was answered; and what the text is known by in a comparison."""
        texts = part(self.run, "test", self.tokenizer, self.folder, sides)
        size = {"bytes": texts.bytes, "characters": texts.characters, "words": texts.words}
        self.refuse_long(self.run.data.max_tokens, "a window (data.max_tokens)")
        for sentence in texts.report():
            warnings.warn(f"{texts.name}: {sentence}", stacklevel=3)
        found = corpus_nll(self.model, texts, self.run.data, self.tokenizer.size, self.device)
        told: dict[str, Any] = {"tokens": found.tokens, **size, **lm_metrics(found, texts)}
        return told | {"policy": found.policy, "seconds": found.seconds}, None, size

    # --- how it is done ----------------------------------------------------------------------------------------

    def logprobs(self, texts: list[list[int]]) -> list[list[float]]:
        """The log-probability of every token but the first."""
        return logprobs(self.model, texts, self.context, self.tokenizer.size, self.device)

    def _records(self, ids: list[list[int]], found: list[list[Continuation]]) -> list[dict[str, Any]]:
        """The best continuation of each prompt, and all of them as `nbest`; log-probabilities are the model's own."""
        said = [(row, each) for row, some in zip(ids, found, strict=True) for each in some]
        ends = [[self.tokenizer.end] * (each.ended == "end") for _, each in said]
        rows = self.logprobs([[*row, *each.tokens, *end] for (row, each), end in zip(said, ends, strict=True)])
        told = iter([self._told(row, each, own) for (row, each), own in zip(said, rows, strict=True)])
        nbest = [[next(told) for _ in some] for some in found]
        return [{**some[0], "nbest": some} for some in nbest]

    def _told(self, ids: list[int], said: Continuation, own: list[float]) -> dict[str, Any]:
        own = own[len(ids) - 1 :]
        return {
            "text": said.text,
            "ended": said.ended,
            "score": said.score,
            "logprob": math.fsum(own),
            "prompt_pieces": self.tokenizer.pieces(ids),
            "pieces": self.tokenizer.pieces(said.tokens),
            "logprobs": own,  # END comes last
        }

    @staticmethod
    def ensemble(systems: Mapping[str, "LanguagePredictor"]) -> "LanguagePredictor":
        """An ensemble of writers by name, which must agree on the vocabulary; the first one's settings hold."""
        (name, first), *others = systems.items()
        for other, system in others:
            if alphabet(first.tokenizer) != alphabet(system.tokenizer):
                raise UserError(
                    f"{name} and {other} have different vocabularies and cannot be asked together; "
                    "train the second with the tokenizer of the first"
                )
        model = Ensemble([system.model for system in systems.values()])
        return LanguagePredictor(first.run, model, first.tokenizer, first.device, first.filters, first.folder)


def alphabet(tokenizer: Tokenizer) -> tuple[list[str], int, int, int]:
    return tokenizer.pieces(range(tokenizer.size)), tokenizer.start, tokenizer.end, tokenizer.pad


# --- training --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """A batch, and what its rows remember of the text before it."""

    batch: TextWindow
    memory: Cache | None = None

    def to(self, device: torch.device | str) -> "Turn":
        return replace(self, batch=self.batch.to(device))


class LanguageObjective:
    """The training side: windows of the texts, the loss of each, and figures on the validation part."""

    def __init__(self, writer: LanguagePredictor, parts: dict[str, Corpus]) -> None:
        self.writer, self.run, self.parts = writer, writer.run, parts
        self.model = writer.model
        carried = self.model.new_memory(1) is not None
        self.windows = (ContiguousSampler if carried else WindowSampler)(parts["train"], self.run.data, self.run.train)
        self.static_shapes = not carried  # what is remembered has to live from one update to the next
        self.memories: dict[int, Cache] = {}  # by the number of their first row

    def describe_data(self) -> list[str]:
        """What the data are, and what of them was left out."""
        told = []
        for name, texts in self.parts.items():
            told.append(f"{name}: {len(texts):,} tokens, {texts.bytes:,} bytes, {texts.name}")
            told += [f"{name}: {sentence}" for sentence in texts.report()]
        return told

    def steps(self, epoch: int, index: int) -> Iterator[Step]:
        for update in self.windows.steps(epoch, index):
            yield replace(update, micro_batches=[Turn(batch, self._memory(batch)) for batch in update.micro_batches])

    def loss(self, model: Model, turn: Turn) -> Tensor:
        """Summed over the predicted tokens."""
        batch = turn.batch
        logits = model.logits(states(model, batch, turn.memory))  # (batch, tokens, vocab)
        return smoothed_cross_entropy(logits, batch.targets, smoothing=self.run.train.smoothing)

    def validate(self, model: Model) -> dict[str, float]:
        if "valid" not in self.parts:
            return {}
        texts, writer = self.parts["valid"], self.writer
        found = corpus_nll(model, texts, self.run.data, writer.tokenizer.size, writer.device, PARTS)
        return lm_metrics(found, texts)

    # What is carried from update to update: a resumed run needs it, too.

    def _memory(self, batch: TextWindow) -> Cache | None:
        if batch.reset is None:
            return None
        if batch.first_row not in self.memories:
            self.memories[batch.first_row] = self.model.new_memory(len(batch.tokens))
        return self.memories[batch.first_row]

    def state(self) -> dict[str, Tensor]:
        held = ((first, memory.state()) for first, memory in self.memories.items())
        return {f"{first}.{name}": tensor for first, tensors in held for name, tensor in tensors.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        for first in {int(name.partition(".")[0]) for name in state}:
            own = {name.partition(".")[2]: each for name, each in state.items() if name.startswith(f"{first}.")}
            if first not in self.memories:  # else the pieces at hand hold it already
                self.memories[first] = self.model.new_memory(len(own["lengths"]))
            self.memories[first].load_state(own)


# --- from a run to these two -----------------------------------------------------------------------------------------

NAME = "tokenizer.json"


def prepare(
    run: Run, folder: Path | None, device: torch.device
) -> tuple[LanguageObjective, dict[str, TrainedTokenizer], Run]:
    """Open the data and learn the tokenizer, or take the one in `folder`; nothing is written but the cache."""
    if run.train.metric == "word_perplexity" and run.data.document != "stream":
        raise UserError("train.metric=word_perplexity is of data.document=stream; use perplexity or bits_per_byte")
    tokenizer = (
        load_tokenizer(folder / NAME)
        if folder
        else train_tokenizer(run.tokenizer, split_documents(run.data, "train").sample())
    )
    run = _with_vocab(run, max(tokenizer.size, run.model.vocab if run.start else 0))  # a borrowed model may have more
    writer = LanguagePredictor(run, build_model(run), tokenizer, device)
    writer.refuse_long(run.data.max_tokens, "a window (data.max_tokens)")
    parts = {"train": part(run, "train", tokenizer, folder)}
    if run.data.valid or run.data.holdout or not run.data.train:
        parts["valid"] = part(run, "valid", tokenizer, folder)
    return LanguageObjective(writer, parts), {NAME: tokenizer}, run


def restore(run: Run, folder: Path, device: torch.device) -> LanguagePredictor:
    """What `folder` holds, but for the weights."""
    return LanguagePredictor(run, build_model(run), load_tokenizer(folder / NAME), device, folder=folder)


def sized(run: Run) -> Run:
    return _with_vocab(run, run.model.vocab or run.tokenizer.vocab)


def part(run: Run, name: str, tokenizer: Tokenizer, folder: Path | None, sides: Sides | None = None) -> Corpus:
    """A part of the data, encoded: the files named for it, else the embedded source texts."""
    return Corpus(split_documents(run.data, name, sides), tokenizer, folder / "cache" if folder else None)


def split_documents(data: TextData, split: str, sides: Sides | None = None) -> Documents:
    """The documents of a split, or of the files in `sides`; without any training files, the standard library."""
    if sides is None and not getattr(data, split) and not data.train:
        return stdlib_documents(data, split)
    return open_documents(data, split, sides)


def _with_vocab(run: Run, vocab: int) -> Run:
    return with_head(with_model_settings(run, vocab=vocab), HEAD)
