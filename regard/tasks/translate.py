"""Translation: sentence in, sentence out. `Translator` is what people use, `Lesson` is what the loop trains."""

import warnings
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config.run import Run, change_settings
from ..config.schema import NEUTRAL_SAMPLING, Seq2SeqDecode, Sides
from ..data.collate import PairBatch
from ..data.examples import Examples
from ..data.pairs import open_pairs, split_references
from ..data.sampler import PairSampler, sorted_batches
from ..decode import Ensemble, Filter, Hypothesis, Suppress
from ..decode.constraints import Constraints, ConstraintTokenizer, parse_constraints
from ..decode.ensemble import mean
from ..decode.texts import sentences
from ..errors import UserError
from ..look import CrossAttentionView, record_attention
from ..metrics.text import paired_bootstrap, signature, text_metrics
from ..parts import Cross, Mask
from ..parts.losses import smoothed_cross_entropy
from ..processors.tokenizers import Tokenizer, TrainedTokenizer, load_tokenizer, train_tokenizer
from ..synthetic.dates import make_dates
from .base import Objective, build_model, open_split, open_splits, with_head, with_model_settings
from .records import Record, Trace, joined, record
from .seq2seq_generator import Seq2SeqGenerator

Model = Any  # an encoder–decoder: encode, decode, logits, start, step


class TranslatePredictor(Seq2SeqGenerator):
    """A model with its vocabularies. It makes no difference to a sentence which others are translated with it."""

    sides = 2  # of an example: source and target

    def __init__(
        self,
        run: Run,
        model: Model,
        source: Tokenizer,
        target: Tokenizer,
        device: torch.device,
        filters: tuple[Filter, ...] | None = None,
    ) -> None:
        self.run, self.source, self.target, self.device = run, source, target, device
        self.model: Model = model.to(device).eval()
        self.filters = (Suppress([target.pad, target.start]),) if filters is None else filters
        self.constraint_tokenizer = ConstraintTokenizer(target)

    paired = staticmethod(paired_bootstrap)

    @staticmethod
    def part(run: Run, name: str, sides: Sides | None = None) -> Examples:
        """A part of the data, as this task reads them."""
        return part(run, name, sides)

    # --- what people ask ---------------------------------------------------------------------------------------

    def predict(self, texts: str | Sequence[str], details: bool = False, **decode: Any) -> Any:
        """A translation for every text, in order; one text gives one. `decode` takes the names of decode.*, and
        `prefix`, `must` and `avoid` may be lists with an entry for each text."""
        if isinstance(texts, str):
            return self.predict([texts], details, **decode)[0]
        own, how = parse_constraints(len(texts), decode, self._how)
        if not how.split:
            return self._predicted(texts, how, self.constraints(own, how), details)
        parts = [[sentence.strip() for sentence in sentences(text)] for text in texts]
        first = [place == 0 for part in parts for place in range(len(part))]
        own = [one for one, part in zip(own, parts, strict=True) for _ in part]
        own = [one if begins else one._replace(prefix="") for one, begins in zip(own, first, strict=True)]
        found = iter(self._predicted(list(chain(*parts)), how, self.constraints(own, how), details))
        groups = [[next(found) for _ in part] for part in parts]
        if details:
            return [joined(part, some, how.length_penalty) for part, some in zip(parts, groups, strict=True)]
        return [" ".join(filter(None, some)) for some in groups]

    def score(self, sources: str | Sequence[str], targets: str | Sequence[str], details: bool = False) -> Any:
        """ln P(target | source), END counted; with details also per token."""
        if isinstance(sources, str) or isinstance(targets, str):
            if not (isinstance(sources, str) and isinstance(targets, str)):
                raise UserError("score takes two texts or two lists of texts, not one of each")
            return self.score([sources], [targets], details)[0]
        if len(sources) != len(targets):
            raise UserError(
                f"there are {len(sources)} sources and {len(targets)} targets; each source needs its target"
            )
        logprobs = self.logprobs(self.source.encode(list(sources)), wanted := self.target.encode(list(targets)))
        totals = [sum(each) for each in logprobs]
        if not details:
            return totals
        return [
            {"score": total, "pieces": [*self.target.pieces(ids), END], "logprobs": each}
            for total, ids, each in zip(totals, wanted, logprobs, strict=True)
        ]

    def look(self, text: str, target: str | None = None) -> CrossAttentionView:
        """Where every attention looks while the model reads `text` and writes `target`, or its own translation."""
        if not text.strip():
            raise UserError("there is nothing to look at in an empty text; give a sentence")
        if target is not None:
            written = self.target.encode([target])[0]
        else:
            own, how = parse_constraints(1, {"nbest": 1}, self._how)
            (found,) = self.generate([text], how, self.constraints(own, how))
            written = found[0].tokens if found else []
        read = self.source.encode([text])[0]
        with record_attention(self._seen) as maps, torch.no_grad():
            states(self._seen, self.pair([read], [written]))
        return self._view(read, written, {path: weights[0].cpu() for path, weights in maps.items()})

    def evaluate(self, sides: Sides | None = None) -> dict[str, Any]:
        """Figures over examples with one or more right answers each; without `sides`, over the run's test part."""
        return self.examine(sides)[0]

    def examine(self, sides: Sides | None = None) -> tuple[dict[str, Any], list[str], list[list[str]]]:
        """What `evaluate` says, with the translations and the right answers that it says it of."""
        examples = self.part(self.run, "test", sides)
        examples.require_nonempty("data.test")
        sources, right = [each[0] for each in examples], [split_references(each[1]) for each in examples]
        found = self.predict(sources, nbest=1)
        figures: dict[str, Any] = {"examples": len(examples)}
        figures |= text_metrics(found, right, ("bleu", "chrf", "ter", "exact"))
        loss = self.loss_over(sources, [among[0] for among in right])
        figures |= {"loss": loss, "perplexity": float(torch.tensor(loss).exp())}
        figures |= {f"{name} signature": signature(name, right) for name in ("bleu", "chrf", "ter")}
        return figures, found, right

    @property
    def tokenizers(self) -> dict[str, Any]:
        """By the name of the file that a run keeps each in."""
        sides = dict(zip(SEPARATE, (self.source, self.target), strict=True))
        return {JOINT: self.source} if self.source is self.target else sides

    # --- how it is done ----------------------------------------------------------------------------------------

    def _predicted(
        self, texts: Sequence[str], how: Seq2SeqDecode, wishes: list[Constraints] | None, details: bool
    ) -> list[Any]:
        found = self.generate(texts, how, wishes)
        said = [self.target.decode([each.tokens for each in best]) for best in found]
        wishes = wishes or [Constraints()] * len(texts)
        if details:
            return self._records(texts, found, said, wishes)
        missing = [wish.missing((some or [""])[0]) for wish, some in zip(wishes, said, strict=True) if wish.include]
        if lacking := [phrases for phrases in missing if phrases]:
            warnings.warn(
                f"decode.include: {len(lacking)} of {len(texts)} texts could not say all, such as {lacking[0][0]!r}; "
                "details show which",
                stacklevel=3,
            )
        return [some if how.nbest > 1 else (some or [""])[0] for some in said]

    @torch.no_grad()
    def logprobs(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        """The log-probability of every target token and of END, by one pass over known targets."""
        found: list[list[float]] = [[] for _ in sources]
        lengths = [max(len(x), len(y)) for x, y in zip(sources, targets, strict=True)]
        for batch in sorted_batches(lengths, rows=self.run.decode.batch):
            pieces = self.pair([sources[i] for i in batch], [targets[i] for i in batch])
            for i, row in zip(batch, self._chosen(pieces), strict=True):
                found[i] = row
        return found

    def _chosen(self, pieces: PairBatch) -> list[list[float]]:
        """The log-probabilities of the known targets."""
        scores = logits(self.model, pieces).float().log_softmax(-1)
        chosen = scores.gather(-1, pieces.target_out[..., None])[..., 0].tolist()  # (batch, tokens)
        return [row[:real] for row, real in zip(chosen, pieces.target_valid.sum(1).tolist(), strict=True)]

    def loss_over(self, sources: Sequence[str], targets: Sequence[str]) -> float:
        """Nats per target token, END counted, unsmoothed."""
        logprobs = self.logprobs(self.source.encode(list(sources)), self.target.encode(list(targets)))
        return -sum(map(sum, logprobs)) / max(sum(map(len, logprobs)), 1)

    def _records(
        self, texts: Sequence[str], found: list[list[Hypothesis]], said: list[list[str]], wishes: list[Constraints]
    ) -> list[Record]:
        sources = self.source.encode(list(texts))
        read = [source for source, best in zip(sources, found, strict=True) for _ in best]
        traces = iter(self._traces(read, [each.tokens for best in found for each in best]))
        return [
            record(some, best, [next(traces) for _ in best], wish)
            for some, best, wish in zip(said, found, wishes, strict=True)
        ]

    @torch.no_grad()
    def _traces(self, sources: list[list[int]], targets: list[list[int]]) -> list[Trace]:
        """What one more pass says of finished targets."""
        found: dict[int, Trace] = {}
        lengths = [max(len(x), len(y)) for x, y in zip(sources, targets, strict=True)]
        for batch in sorted_batches(lengths, rows=SEEN):
            with record_attention(self._seen) as maps:
                chosen = self._chosen(self.pair([sources[i] for i in batch], [targets[i] for i in batch]))
            cross = {path: weights.cpu() for path, weights in maps.items() if path.endswith(".cross")}
            for row, i in enumerate(batch):
                view = self._view(sources[i], targets[i], {path: weights[row] for path, weights in cross.items()})
                found[i] = Trace(chosen[row], view.source[:-1], view.target[:-1], view.alignment())
        return [found[i] for i in range(len(sources))]

    def _view(self, source: list[int], target: list[int], maps: dict[str, Tensor]) -> CrossAttentionView:
        return CrossAttentionView([*self.source.pieces(source), END], [*self.target.pieces(target), END], maps)

    @property
    def _seen(self) -> Any:
        """The model whose attention is looked at: of an ensemble the first."""
        return self.model.members[0] if isinstance(self.model, Ensemble) else self.model

    def _how(self, decode: Mapping[str, Any]) -> Seq2SeqDecode:
        return change_settings(self.run, {"decode": decode}).decode if decode else self.run.decode

    @staticmethod
    def ensemble(systems: Mapping[str, "TranslatePredictor"]) -> "TranslatePredictor":
        """An ensemble of translators by name, which must agree on the vocabularies; the first one's settings hold."""
        (name, first), *others = systems.items()
        for other, system in others:
            for side in ("source", "target"):
                if alphabet(getattr(first, side)) != alphabet(getattr(system, side)):
                    raise UserError(
                        f"{name} and {other} have different {side} vocabularies and cannot be asked together; "
                        "train the second with the tokenizer of the first"
                    )
        model = Ensemble([system.model for system in systems.values()])
        return TranslatePredictor(first.run, model, first.source, first.target, first.device, first.filters)


VERBS = ("encode", "decode", "logits", "start", "step")  # what a family must have for this task
HEAD = "target"  # of a family with several: what the model says
END = "■"  # how pictures show the END symbol
SEEN = 16  # hypotheses that are looked at together: all their attention weights are kept for a moment


def alphabet(tokenizer: Tokenizer) -> tuple[list[str], int, int, int]:
    return tokenizer.pieces(range(tokenizer.size)), tokenizer.start, tokenizer.end, tokenizer.pad


def logits(model: Model, batch: PairBatch) -> Tensor:
    """For a known target: (batch, tokens, vocab)."""
    if isinstance(model, Ensemble):
        return mean([logits(member, batch) for member in model.members])
    return model.logits(states(model, batch))


def states(model: Model, batch: PairBatch) -> Tensor:
    """The decoder's output for a known target: (batch, tokens, width)."""
    if batch.source_segments is None:
        mask = Mask(key_valid=batch.source_valid)
        return model.decode(batch.target_in, Cross(model.encode(batch.source, mask), mask))
    mask = Mask(positions=batch.source_positions, segments=batch.source_segments)
    cross = Mask(segments=batch.target_segments, key_segments=batch.source_segments)
    own = Mask(positions=batch.target_positions, segments=batch.target_segments)
    return model.decode(batch.target_in, Cross(model.encode(batch.source, mask), cross), own)


# Validation decodes greedily, whatever the run is to be used with.
PLAIN: dict[str, Any] = {"kind": "greedy", "nbest": 1, "include": (), **NEUTRAL_SAMPLING}


class TranslateObjective(Objective):
    """The training side: batches from the data, the loss of each, and figures on the validation part."""

    def __init__(self, translator: TranslatePredictor, parts: dict[str, Examples]) -> None:
        self.translator, self.run, self.parts = translator, translator.run, parts
        self.model, self.static_shapes = translator.model, self.run.data.packed
        source, target, run = translator.source, translator.target, self.run
        self.batcher = PairSampler(parts["train"], source, target, run.data, run.train, translator.context)
        if "valid" in parts and translator.context is not None:  # better now than when it is first measured
            sides = [each[0] for each in parts["valid"]], [split_references(each[1])[0] for each in parts["valid"]]
            for tokenizer, texts in zip((source, target), sides, strict=True):
                translator.refuse_long(tokenizer.encode(texts), "a text of data.valid")

    def loss(self, model: Model, batch: PairBatch) -> Tensor:
        """Summed over the real target tokens. Of padded rows only they meet the vocabulary; packed rows are full."""
        batch = batch.to(self.translator.device)
        found, targets, real = states(model, batch), batch.target_out, batch.target_valid
        if batch.target_index is not None:
            found, targets = found.flatten(0, 1)[batch.target_index], targets.flatten()[batch.target_index]
            return smoothed_cross_entropy(model.logits(found), targets, smoothing=self.run.train.smoothing)
        return smoothed_cross_entropy(model.logits(found), targets, real, self.run.train.smoothing)

    def validate(self, model: Model) -> dict[str, float]:
        if "valid" not in self.parts:
            return {}
        examples = self.parts["valid"]
        sources, right = [each[0] for each in examples], [split_references(each[1]) for each in examples]
        loss = self.translator.loss_over(sources, [among[0] for among in right])
        figures = {"loss": loss, "perplexity": float(torch.tensor(loss).exp())}
        if self.run.train.metric in figures:
            return figures
        found = self.translator.predict(sources, **PLAIN)
        return figures | text_metrics(found, right, ("bleu", "chrf", "exact"))


# --- from a run to these two ---------------------------------------------------------------------------------------


def prepare(
    run: Run, folder: Path | None, device: torch.device, kind: type[TranslatePredictor] = TranslatePredictor
) -> tuple[TranslateObjective, dict[str, TrainedTokenizer], Run]:
    """Open the data and learn the tokenizer, or take the one in `folder`; nothing is written."""
    parts = open_splits(run, kind.part)
    tokenizers = _loaded(run, folder) if folder else _learnt(run, parts["train"])
    run = with_vocab(run, *sides_of(tokenizers))
    translator = kind(run, build_model(run), *sides_of(tokenizers), device)
    return TranslateObjective(translator, parts), tokenizers, run


def restore(
    run: Run, folder: Path, device: torch.device, kind: type[TranslatePredictor] = TranslatePredictor
) -> TranslatePredictor:
    """What `folder` holds, but for the weights."""
    return kind(run, build_model(run), *sides_of(_loaded(run, folder)), device)


def sides_of(tokenizers: Mapping[str, TrainedTokenizer]) -> tuple[TrainedTokenizer, TrainedTokenizer]:
    source, target = (tokenizers.get(name) or tokenizers[JOINT] for name in SEPARATE)
    return source, target


def with_vocab(run: Run, source: TrainedTokenizer, target: TrainedTokenizer) -> Run:
    """The run with as many tokens as its tokenizers have; a model that is borrowed may have room for more."""
    sizes = {"vocab": source.size, "target_vocab": 0 if source is target else target.size}
    if run.start and not run.model.target_vocab:  # one table for both sides, also if they are cut in two ways (Marian)
        sizes = {"vocab": max(source.size, target.size, run.model.vocab), "target_vocab": 0}
    elif run.start:
        sizes = {name: max(size, getattr(run.model, name)) for name, size in sizes.items()}
    return with_head(with_model_settings(run, **sizes), HEAD)


def sized(run: Run) -> Run:
    vocab = run.model.vocab or run.tokenizer.vocab
    target = run.model.target_vocab or (0 if run.tokenizer.joint else run.tokenizer.vocab)
    return with_head(with_model_settings(run, vocab=vocab, target_vocab=target), HEAD)


def part(run: Run, name: str, sides: Sides | None = None) -> Examples:
    """A part of the data; the embedded ones are dates. Test data may hold several references."""
    data = run.data
    read = lambda some: open_pairs(some, data, references=name != "train")  # noqa: E731
    return open_split(
        run, name, sides, read, lambda: make_dates(data.locales, data.examples, seed=1)[name], "test.en,test.de"
    )


JOINT, SEPARATE = "tokenizer.json", ("source.tokenizer.json", "target.tokenizer.json")


def _learnt(run: Run, train: Examples) -> dict[str, TrainedTokenizer]:
    if run.tokenizer.joint:
        return {JOINT: train_tokenizer(run.tokenizer, train.texts(0, 1))}
    return {name: train_tokenizer(run.tokenizer, train.texts(side)) for side, name in enumerate(SEPARATE)}


def _loaded(run: Run, folder: Path) -> dict[str, TrainedTokenizer]:
    joint = run.tokenizer.joint and not (folder / SEPARATE[0]).is_file()  # a borrowed one may have two sides
    return {name: load_tokenizer(folder / name) for name in ((JOINT,) if joint else SEPARATE)}
