"""Translation: sentence in, sentence out. `Translator` is what people use, `Lesson` is what the loop trains."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config import Decode, Run, Sides, change, family_of
from ..data import Examples
from ..data.batches import Batcher, Pair, Update, pair, sorted_batches
from ..data.made import make
from ..data.readers import pairs, references
from ..data.tokenizers import Text, Tokenizer, learn, load
from ..decode import Filter, Hypothesis, Settings, Suppress, search
from ..errors import Mistake
from ..look import View, recording
from ..metrics import signature, text_figures
from ..parts import Cross, Mask
from ..parts.losses import smoothed

Record = dict[str, Any]
Model = Any  # an encoder–decoder: encode, decode, logits, start, step


class Translator:
    """A model with its vocabularies. It makes no difference to a sentence which others are translated with it."""

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

    # --- what people ask ---------------------------------------------------------------------------------------

    def predict(self, texts: str | Sequence[str], details: bool = False, **decode: Any) -> Any:
        """A translation for every text, in order; one text gives one. `decode` takes the names of decode.*."""
        if isinstance(texts, str):
            return self.predict([texts], details, **decode)[0]
        how = self._how(decode)
        found = self.search(texts, how)
        if details:
            return [self._record(text, best, how) for text, best in zip(texts, found, strict=True)]
        best = [self.target.decode([each.tokens for each in hypotheses]) for hypotheses in found]
        return [some if how.nbest > 1 else (some or [""])[0] for some in best]

    def score(self, sources: str | Sequence[str], targets: str | Sequence[str], details: bool = False) -> Any:
        """ln P(target | source), END counted; with details also per token."""
        if isinstance(sources, str) or isinstance(targets, str):
            if not (isinstance(sources, str) and isinstance(targets, str)):
                raise Mistake("score takes two texts or two lists of texts, not one of each")
            return self.score([sources], [targets], details)[0]
        if len(sources) != len(targets):
            raise Mistake(f"there are {len(sources)} sources and {len(targets)} targets; each source needs its target")
        logprobs = self.logprobs(self.source.encode(list(sources)), wanted := self.target.encode(list(targets)))
        totals = [sum(each) for each in logprobs]
        if not details:
            return totals
        return [
            {"score": total, "pieces": [*self.target.pieces(ids), END], "logprobs": each}
            for total, ids, each in zip(totals, wanted, logprobs, strict=True)
        ]

    def look(self, text: str, target: str | None = None) -> View:
        """Where every attention looks while the model reads `text` and writes `target`, or its own translation."""
        if not text.strip():
            raise Mistake("there is nothing to look at in an empty text; give a sentence")
        if target is None:
            found = self.search([text], self._how({}))[0]
            return self._view(self.source.encode([text])[0], found[0].tokens if found else [])
        return self._view(self.source.encode([text])[0], self.target.encode([target])[0])

    def evaluate(self, sides: Sides | None = None) -> dict[str, Any]:
        """Figures over examples with one or more right answers each; without `sides`, over the run's test part."""
        examples = part(self.run, "test", sides)
        examples.need_some("data.test")
        sources, right = [each[0] for each in examples], [references(each[1]) for each in examples]
        found = self.predict(sources, nbest=1)
        figures: dict[str, Any] = {"examples": len(examples)}
        figures |= text_figures(found, right, ("bleu", "chrf", "ter", "exact"))
        loss = self.loss_over(sources, [among[0] for among in right])
        figures |= {"loss": loss, "perplexity": float(torch.tensor(loss).exp())}
        return figures | {f"{name} signature": signature(name, right) for name in ("bleu", "chrf", "ter")}

    # --- how it is done ----------------------------------------------------------------------------------------

    def search(self, texts: Sequence[str], how: Decode) -> list[list[Hypothesis]]:
        """The hypotheses for every text, best first; none for an empty text."""
        ids = self.source.encode(list(texts))
        full = [i for i, text in enumerate(texts) if text.strip()]
        found: list[list[Hypothesis]] = [[] for _ in texts]
        for batch in sorted_batches([len(ids[i]) for i in full], rows=how.batch):
            chosen = [full[i] for i in batch]
            for i, best in zip(chosen, self._search([ids[i] for i in chosen], how), strict=True):
                found[i] = best
        return found

    def _search(self, ids: list[list[int]], how: Decode) -> list[list[Hypothesis]]:
        batch = self._pair(ids, [[] for _ in ids])
        mask = self._mask(batch)
        lengths = batch.source_real.sum(1)
        limits = torch.full_like(lengths, how.max_tokens) if how.max_tokens else 2 * lengths + 16
        greedy = how.kind == "greedy"
        settings = Settings(
            self.target.end, 1 if greedy else how.beam, how.length_penalty, how.nbest,
            "first" if greedy else how.stop, self.filters,
        )  # fmt: skip
        with torch.no_grad():
            cache = self.model.start(batch.source, mask)
        return search(self.model, cache, batch.target_in, limits, settings)

    @torch.no_grad()
    def logprobs(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        """The log-probability of every target token and of END, by one pass over known targets."""
        found: list[list[float]] = [[] for _ in sources]
        lengths = [max(len(x), len(y)) for x, y in zip(sources, targets, strict=True)]
        for batch in sorted_batches(lengths, rows=self.run.decode.batch):
            pieces = self._pair([sources[i] for i in batch], [targets[i] for i in batch])
            scores = self.model.logits(states(self.model, pieces)).float().log_softmax(-1)
            chosen = scores.gather(-1, pieces.target_out[..., None])[..., 0]  # (batch, tokens)
            for i, row, real in zip(batch, chosen.tolist(), pieces.target_real.sum(1).tolist(), strict=True):
                found[i] = row[:real]
        return found

    def loss_over(self, sources: Sequence[str], targets: Sequence[str]) -> float:
        """Nats per target token, END counted, unsmoothed."""
        logprobs = self.logprobs(self.source.encode(list(sources)), self.target.encode(list(targets)))
        return -sum(map(sum, logprobs)) / max(sum(map(len, logprobs)), 1)

    @torch.no_grad()
    def _view(self, source: list[int], target: list[int]) -> View:
        with recording(self.model) as maps:
            states(self.model, self._pair([source], [target]))
        kept = {path: weights[0].cpu() for path, weights in maps.items()}
        return View([*self.source.pieces(source), END], [*self.target.pieces(target), END], kept)

    def _record(self, text: str, hypotheses: list[Hypothesis], how: Decode) -> Record:
        if not hypotheses:
            return {
                "text": "",
                "score": None,
                "logprob": None,
                "ended": None,
                "pieces": [],
                "alignment": [],
                "nbest": [],
            }
        texts = self.target.decode([each.tokens for each in hypotheses])
        nbest = [
            {"text": said, "score": each.score, "logprob": each.logprob, "ended": each.ended}
            for said, each in zip(texts, hypotheses, strict=True)
        ]
        view = self._view(self.source.encode([text])[0], hypotheses[0].tokens)
        seen = {"source_pieces": view.source[:-1], "pieces": view.target[:-1], "alignment": view.alignment()}
        return nbest[0] | seen | {"nbest": nbest}

    def _pair(self, sources: list[list[int]], targets: list[list[int]]) -> Pair:
        return pair(sources, targets, self.source, self.target).to(self.device)

    def _mask(self, batch: Pair) -> Mask:
        return Mask(keys=batch.source_real)

    def _how(self, decode: dict[str, Any]) -> Decode:
        return change(self.run, {"decode": decode}).decode if decode else self.run.decode


END = "■"  # how pictures show the END symbol


def states(model: Model, batch: Pair) -> Tensor:
    """The decoder's output for a known target: (batch, tokens, width)."""
    if batch.source_segments is None:
        mask = Mask(keys=batch.source_real)
        return model.decode(batch.target_in, Cross(model.encode(batch.source, mask), mask))
    mask = Mask(at=batch.source_at, segments=batch.source_segments)
    cross = Mask(segments=batch.target_segments, keys_segments=batch.source_segments)
    own = Mask(at=batch.target_at, segments=batch.target_segments)
    return model.decode(batch.target_in, Cross(model.encode(batch.source, mask), cross), own)


class Lesson:
    """The training side: batches from the data, the loss of each, and figures on the validation part."""

    def __init__(self, translator: Translator, parts: dict[str, Examples]) -> None:
        self.translator, self.run, self.parts = translator, translator.run, parts
        self.batcher = Batcher(parts["train"], translator.source, translator.target, self.run.data, self.run.train)

    def facts(self) -> list[str]:
        """What the data are, and what of them was left out so far."""
        told = []
        for name, examples in self.parts.items():
            told.append(f"{name}: {len(examples):,} examples, {examples.name}")
            told += [f"{name}: {sentence}" for sentence in examples.report()]
        return told + self.batcher.report()

    def updates(self, epoch: int, index: int) -> Iterator[Update]:
        return self.batcher.updates(epoch, index)

    def loss(self, model: Model, batch: Pair) -> Tensor:
        """Summed over the real target tokens; only they go through the vocabulary."""
        batch = batch.to(self.translator.device)
        real = batch.target_real
        logits = model.logits(states(model, batch)[real])  # (tokens, vocab)
        return smoothed(logits, batch.target_out[real], smoothing=self.run.train.smoothing)

    def validate(self, model: Model) -> dict[str, float]:
        if "valid" not in self.parts:
            return {}
        examples = self.parts["valid"]
        sources, right = [each[0] for each in examples], [references(each[1]) for each in examples]
        loss = self.translator.loss_over(sources, [among[0] for among in right])
        figures = {"loss": loss, "perplexity": float(torch.tensor(loss).exp())}
        if self.run.train.metric in figures:
            return figures
        found = self.translator.predict(sources, kind="greedy", nbest=1)
        return figures | text_figures(found, right, ("bleu", "chrf", "exact"))


# --- from a run to these two ---------------------------------------------------------------------------------------


def prepare(run: Run, folder: Path | None, device: torch.device) -> tuple[Lesson, dict[str, Text], Run]:
    """Open the data and learn the tokenizer, or take the one in `folder`; nothing is written."""
    parts = {"train": part(run, "train")}
    parts["train"].need_some("data.train")
    if run.data.valid or not run.data.train:
        parts["valid"] = part(run, "valid")
        parts["valid"].need_some("data.valid")
    tokenizers = _loaded(run, folder) if folder else _learnt(run, parts["train"])
    source, target = (tokenizers.get(name) or tokenizers[JOINT] for name in SEPARATE)
    sizes = {"vocab": source.size, "target_vocab": 0 if run.tokenizer.joint else target.size}
    run = run.model_copy(update={"model": run.model.model_copy(update=sizes)})
    translator = Translator(run, _model(run), source, target, device)
    return Lesson(translator, parts), tokenizers, run


def restore(run: Run, folder: Path, device: torch.device) -> Translator:
    """What `folder` holds, but for the weights."""
    tokenizers = _loaded(run, folder)
    source, target = (tokenizers.get(name) or tokenizers[JOINT] for name in SEPARATE)
    return Translator(run, _model(run), source, target, device)


def part(run: Run, name: str, sides: Sides | None = None) -> Examples:
    """A part of the data: the files named for it, else the embedded dates. Test data may hold several references."""
    sides = getattr(run.data, name) if sides is None else sides
    if sides:
        return pairs(sides, run.data, references=name != "train")
    if run.data.train:
        raise Mistake(f"this run has no {name} data; name some, such as --data test.en,test.de (data.{name})")
    return make(run.data.locales, run.data.examples, seed=1)[name]


JOINT, SEPARATE = "tokenizer.json", ("source.tokenizer.json", "target.tokenizer.json")


def _learnt(run: Run, train: Examples) -> dict[str, Text]:
    if run.tokenizer.joint:
        return {JOINT: learn(run.tokenizer, train.texts(0, 1))}
    return {name: learn(run.tokenizer, train.texts(side)) for side, name in enumerate(SEPARATE)}


def _loaded(run: Run, folder: Path) -> dict[str, Text]:
    return {name: load(folder / name) for name in ((JOINT,) if run.tokenizer.joint else SEPARATE)}


def _model(run: Run) -> Model:
    torch.manual_seed(run.train.seed)
    return family_of(run.model.family).Model(run.model)
