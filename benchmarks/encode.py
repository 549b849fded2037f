"""`regard bench encode`: vectors of texts of mixed length by BERT, beside Hugging Face's padded, length-sorted batches.

Both sides get texts and give vectors, mean-pooled and of length 1: ours as `regard predict RUN --embed` does. Weights
are random and the same, and so is the tokenizer. Hugging Face cuts the sorted texts into batches as suits it best.
"""

import copy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.adapt import precision
from regard.config.run import Run
from regard.data.collate import Ids, pad_rows, valid_mask
from regard.data.sampler import sorted_batches
from regard.device import resolve_device
from regard.errors import UserError
from regard.families import bert
from regard.formats.huggingface.bert_export import config, tensors
from regard.parts.pooling import pool
from regard.processors.tokenizers import TrainedTokenizer
from regard.tasks.masked import MaskedPredictor
from regard.training import optim as optim

from .report import Report, Section
from .timing import rounds, settle
from .translate import about
from .translate.peers import installed
from .translate.sentences import tokenizer, words

SIZES = ("base", "tiny")
PARTS = ("fp32", "bf16")
MIDDLE, SPREAD = 3.2, 0.8  # of the logarithm of a text's length: 31 tokens on average
LEAST, MOST = 4, 200  # tokens, START and END counted
APART = 1e-5  # of a component, at most, between programs that compute in fp32
EVERY = 4  # of the batches, one is timed while the best way of cutting them is looked for

Encoder = Callable[[list[str]], Tensor]  # texts to vectors (texts, width)


@dataclass(frozen=True)
class Cut:
    """How sorted texts become batches: so many texts, or so many tokens with padding."""

    rows: int = 0
    tokens: int = 0

    def __str__(self) -> str:
        return f"{self.rows} texts" if self.rows else f"{self.tokens:,} tokens"

    def batches(self, lengths: list[int]) -> list[list[int]]:
        return sorted_batches(lengths, self.tokens, self.rows)


USUAL = Cut(rows=32)  # what sentence-transformers does unless told otherwise


@dataclass(frozen=True)
class Plan:
    texts: int = 512
    vocab: int = 30522
    cuts: tuple[Cut, ...] = (
        Cut(rows=8), Cut(rows=16), USUAL, Cut(rows=64), Cut(tokens=256), Cut(tokens=512), Cut(tokens=1024),
        Cut(tokens=2048),
    )  # fmt: skip


def planned(size: str, device: torch.device) -> Plan:
    if size == "tiny":
        return Plan(texts=24, vocab=320, cuts=(Cut(rows=8), Cut(tokens=256)))
    if device.type == "cuda":
        wide = Cut(tokens=4096), Cut(tokens=8192), Cut(tokens=16384)
        return Plan(cuts=(USUAL, Cut(rows=64), Cut(rows=128), Cut(rows=256), *wide))
    return Plan()


def main(device: str, size: str, count: int, parts: tuple[str, ...]) -> Report:
    where, notes = resolve_device(device), list[str]()
    plan = planned(size, where)
    text, texts = tokenizer(plan.vocab), made(plan)
    places = {"kind": "learned", "tokens": 512}
    c = bert.Config.model_validate(bert.SIZES[size] | {"size": size, "vocab": text.size, "positions": places})
    torch.manual_seed(1)
    bench = Bench(bert.Model(c).eval(), c, text, texts, plan, where)
    sections = []
    for part in parts:
        print(f"timing {part} …", file=sys.stderr)
        sections.append(bench.section(part, count, notes))
    return Report("encode", about(where) | {"size": size, "rounds": count}, sections, list(dict.fromkeys(notes)))


def made(plan: Plan) -> list[str]:
    """Random words. What they are makes no difference to speed; how many they are does."""
    chance, known = np.random.default_rng(1), np.array(words(plan.vocab))
    lengths = np.clip(np.exp(chance.normal(MIDDLE, SPREAD, plan.texts)).round(), LEAST, MOST).astype(int)
    return [" ".join(chance.choice(known, length - 2)) for length in lengths]


class Bench:
    def __init__(
        self,
        model: bert.Model,
        c: bert.Config,
        text: TrainedTokenizer,
        texts: list[str],
        plan: Plan,
        device: torch.device,
    ) -> None:
        self.model, self.c, self.text, self.texts, self.plan, self.device = model, c, text, texts, plan, device
        self.lengths = [len(row) for row in between(text, texts)]
        self.exact = self.ours("fp32")(texts)

    def section(self, part: str, count: int, notes: list[str]) -> Section:
        kinds = ("fp32",) if part == "fp32" else ("bf16",) if self.device.type == "cuda" else ("bf16", "int8")
        ways: dict[str, Encoder] = {f"regard {kind}": self.ours(kind) for kind in kinds}
        facts = [f"{len(self.texts)} texts, {sum(self.lengths):,} tokens; each text is cut into tokens, too"]
        if installed("transformers", notes):
            theirs = self.hugging_face(part)
            best, told = self.best(theirs)
            facts.append(told)
            for cut in dict.fromkeys((best, USUAL)):
                ways[f"HF {part}, {cut} a batch"] = theirs(cut)
        facts += [self.compare(name, go(self.texts), part == "fp32") for name, go in ways.items()]
        rates = rounds({name: timed(go, self.texts) for name, go in ways.items()}, count, self.device, warm=True)
        return Section(part, "texts/s", rates, tuple(name for name in ways if name.startswith("regard")), facts)

    def compare(self, name: str, vectors: Tensor, equal: bool) -> str:
        """Where vectors have to be those of our fp32 and are not, nothing is timed."""
        apart = float((vectors - self.exact).abs().max())
        if equal and not apart <= APART:
            raise UserError(f"{name} gave vectors that are {apart:.1e} apart from regard fp32's, so nothing was timed")
        cosines = F.cosine_similarity(vectors, self.exact)
        return f"{name}: vectors apart by {apart:.1e} from regard fp32's, cosines {cosines.min():.5f} or more"

    def ours(self, kind: str) -> Encoder:
        model = copy.deepcopy(self.model).to(self.device)
        run = Run(task="masked", model=self.c, data={"max_tokens": MOST}, device=str(self.device))
        reader = MaskedPredictor(run, precision.apply(model, kind), self.text, self.device)
        return lambda texts: reader.embed(texts, pooling="mean", normalize=True)

    def hugging_face(self, kind: str) -> Callable[[Cut], Encoder]:
        import transformers as hf

        hf.utils.logging.set_verbosity_error()
        words: dict[str, Any] = config(self.c, self.text) | {"attn_implementation": "sdpa"}
        model: Any = hf.BertModel(hf.BertConfig(**words), add_pooling_layer=False)
        model.load_state_dict(tensors(self.model, self.c))
        model = model.eval().to(self.device, torch.bfloat16 if kind == "bf16" else torch.float32)
        return lambda cut: lambda texts: self.padded(model, texts, cut)

    @torch.inference_mode()
    def padded(self, model: Any, texts: list[str], cut: Cut) -> Tensor:
        """The vectors by a Hugging Face model."""
        rows = between(self.text, texts)
        vectors = torch.empty(len(rows), self.c.width)
        for batch in cut.batches([len(row) for row in rows]):
            some = [rows[i] for i in batch]
            tokens, seen = pad_rows(some, self.text.pad).to(self.device), valid_mask(some).to(self.device)
            states = model(input_ids=tokens, attention_mask=seen.long()).last_hidden_state
            vectors[batch] = pool(states, seen, "mean", True).float().cpu()
        return vectors

    def best(self, theirs: Callable[[Cut], Encoder]) -> tuple[Cut, str]:
        """The cut with which a model is fastest, as some batches of each tell, longer and shorter ones."""
        rates = {}
        for cut in self.plan.cuts:
            go, batches = theirs(Cut(rows=len(self.texts))), cut.batches(self.lengths)
            some = batches[EVERY // 2 :: EVERY] or batches
            go([self.texts[i] for i in some[0]])
            settle(self.device)
            began = time.perf_counter()
            for batch in some:
                go([self.texts[i] for i in batch])
            settle(self.device)
            speed = self.tokens(some) / (time.perf_counter() - began)  # padding counted
            rates[cut] = speed * len(self.texts) / self.tokens(batches)
        order = sorted(rates, key=lambda cut: -rates[cut])
        padding = 1 - sum(self.lengths) / self.tokens(order[0].batches(self.lengths))
        tried = ", ".join(f"{cut} {rates[cut]:.3g}" for cut in order)
        return order[0], f"HF in batches of (texts/s, tried once): {tried}; padding with the first {padding:.1%}"

    def tokens(self, batches: list[list[int]]) -> int:
        return sum(len(batch) * max(self.lengths[i] for i in batch) for batch in batches)


def between(text: TrainedTokenizer, texts: list[str]) -> list[Ids]:
    return [np.array([text.start, *ids, text.end]) for ids in text.encode(texts)]


def timed(go: Encoder, texts: list[str]) -> Callable[[int], float]:
    return lambda number: float(len(go(texts)))
