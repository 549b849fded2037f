"""`python -m benchmarks encode`: sentence embeddings by BERT, beside Hugging Face with padded, length-sorted batches.

Both sides get texts of mixed length and return mean-pooled vectors of length 1, as `regard predict RUN --embed` does.
Weights are random and the same, and so is the tokenizer. Hugging Face uses its fastest batch size.
"""

import copy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.adapt import precision
from regard.config.run import Run
from regard.data.datasets.collate import Ids, pad_rows, valid_mask
from regard.data.loading.sampler import sorted_batches
from regard.device import resolve_device
from regard.errors import UserError
from regard.families import bert
from regard.formats.huggingface.bert import FORMAT
from regard.parts.pooling import pool
from regard.processors.text.tokenizers import TrainedTokenizer
from regard.tasks.masked.task import MaskedPredictor

from .report import Report, Section
from .timing import rounds, synchronize
from .translate import environment
from .translate.pairs import tokenizer, words
from .translate.peers import installed

SIZES = ("base", "tiny")
PARTS = ("fp32", "bf16")
MIDDLE, SPREAD = 3.2, 0.8  # mean and deviation of the log length: 31 tokens on average
LEAST, MOST = 4, 200  # tokens, with START and END
TOLERANCE = 1e-5  # largest difference of a component between fp32 programs
EVERY = 4  # one of so many batches is timed in the search for the best batch size

Encoder = Callable[[list[str]], Tensor]  # texts to vectors (texts, width)


@dataclass(frozen=True)
class BatchSize:
    """The batch size of sorted texts: in texts, or in tokens with padding."""

    rows: int = 0
    tokens: int = 0

    def __str__(self) -> str:
        return f"{self.rows} texts" if self.rows else f"{self.tokens:,} tokens"

    def batches(self, lengths: list[int]) -> list[list[int]]:
        return sorted_batches(lengths, self.tokens, self.rows)


USUAL = BatchSize(rows=32)  # the default of sentence-transformers


@dataclass(frozen=True)
class EncodeWorkload:
    """How much is encoded."""

    texts: int = 512
    vocab: int = 30522
    batch_sizes: tuple[BatchSize, ...] = (
        BatchSize(rows=8), BatchSize(rows=16), USUAL, BatchSize(rows=64),
        BatchSize(tokens=256), BatchSize(tokens=512), BatchSize(tokens=1024), BatchSize(tokens=2048),
    )  # fmt: skip


def make_workload(size: str, device: torch.device) -> EncodeWorkload:
    if size == "tiny":
        return EncodeWorkload(texts=24, vocab=320, batch_sizes=(BatchSize(rows=8), BatchSize(tokens=256)))
    if device.type == "cuda":
        wide = BatchSize(tokens=4096), BatchSize(tokens=8192), BatchSize(tokens=16384)
        return EncodeWorkload(batch_sizes=(USUAL, BatchSize(rows=64), BatchSize(rows=128), BatchSize(rows=256), *wide))
    return EncodeWorkload()


def main(device: str, size: str, count: int, parts: tuple[str, ...]) -> Report:
    where, notes = resolve_device(device), list[str]()
    workload = make_workload(size, where)
    text, texts = tokenizer(workload.vocab), random_texts(workload)
    positions = {"kind": "learned", "tokens": 512}
    c = bert.Config.model_validate(bert.SIZES[size] | {"size": size, "vocab": text.size, "positions": positions})
    torch.manual_seed(1)
    benchmark = EncodeBenchmark(bert.Model(c).eval(), c, text, texts, workload, where)
    sections = []
    for part in parts:
        print(f"timing {part} …", file=sys.stderr)
        sections.append(benchmark.section(part, count, notes))
    return Report("encode", environment(where) | {"size": size, "rounds": count}, sections, list(dict.fromkeys(notes)))


def random_texts(workload: EncodeWorkload) -> list[str]:
    """Random words: only their number matters for speed."""
    rng, known = np.random.default_rng(1), np.array(words(workload.vocab))
    lengths = np.clip(np.exp(rng.normal(MIDDLE, SPREAD, workload.texts)).round(), LEAST, MOST).astype(int)
    return [" ".join(rng.choice(known, length - 2)) for length in lengths]


class EncodeBenchmark:
    """The programs and their inputs."""

    def __init__(
        self,
        model: bert.Model,
        c: bert.Config,
        text: TrainedTokenizer,
        texts: list[str],
        workload: EncodeWorkload,
        device: torch.device,
    ) -> None:
        self.model, self.c, self.text, self.texts, self.workload, self.device = model, c, text, texts, workload, device
        self.lengths = [len(row) for row in encode_with_specials(text, texts)]
        self.exact = self.ours("fp32")(texts)

    def section(self, part: str, count: int, notes: list[str]) -> Section:
        kinds = ("fp32",) if part == "fp32" else ("bf16",) if self.device.type == "cuda" else ("bf16", "int8")
        programs: dict[str, Encoder] = {f"regard {kind}": self.ours(kind) for kind in kinds}
        facts = [f"{len(self.texts)} texts, {sum(self.lengths):,} tokens; tokenization is included"]
        if installed("transformers", notes):
            theirs = self.hugging_face(part)
            best, fact = self.best(theirs)
            facts.append(fact)
            for batch_size in dict.fromkeys((best, USUAL)):
                programs[f"HF {part}, {batch_size} a batch"] = theirs(batch_size)
        facts += [self.compare(name, go(self.texts), part == "fp32") for name, go in programs.items()]
        rates = rounds(
            {name: count_texts(go, self.texts) for name, go in programs.items()}, count, self.device, warm=True
        )
        return Section(part, "texts/s", rates, tuple(name for name in programs if name.startswith("regard")), facts)

    def compare(self, name: str, vectors: Tensor, equal: bool) -> str:
        """Compare with regard fp32. If `equal` vectors differ, nothing is timed."""
        difference = float((vectors - self.exact).abs().max())
        if equal and not difference <= TOLERANCE:
            raise UserError(
                f"{name} gave vectors that differ by {difference:.1e} from regard fp32, so nothing was timed"
            )
        cosines = F.cosine_similarity(vectors, self.exact)
        return f"{name}: vectors differ by {difference:.1e} from regard fp32, cosines {cosines.min():.5f} or more"

    def ours(self, kind: str) -> Encoder:
        model = copy.deepcopy(self.model).to(self.device)
        run = Run(task="masked", model=self.c, data={"max_tokens": MOST}, device=str(self.device))
        predictor = MaskedPredictor(run, precision.apply_precision(model, kind), self.text, self.device)
        return lambda texts: predictor.embed(texts, pooling="mean", normalize=True)

    def hugging_face(self, kind: str) -> Callable[[BatchSize], Encoder]:
        import transformers as hf

        hf.utils.logging.set_verbosity_error()
        own: dict[str, Any] = {
            "pad_token_id": self.text.pad,
            "attn_implementation": "sdpa",
        }
        model: Any = hf.BertModel(hf.BertConfig(**FORMAT.config(self.c) | own), add_pooling_layer=False)
        model.load_state_dict(FORMAT.tensors(SimpleNamespace(module=self.model, run=SimpleNamespace(model=self.c))))
        model = model.eval().to(self.device, torch.bfloat16 if kind == "bf16" else torch.float32)
        return lambda batch_size: lambda texts: self.padded(model, texts, batch_size)

    @torch.inference_mode()
    def padded(self, model: Any, texts: list[str], batch_size: BatchSize) -> Tensor:
        """Embed the texts with a Hugging Face model, in padded batches."""
        rows = encode_with_specials(self.text, texts)
        vectors = torch.empty(len(rows), self.c.width)
        for batch in batch_size.batches([len(row) for row in rows]):
            chosen = [rows[i] for i in batch]
            tokens, valid = pad_rows(chosen, self.text.pad).to(self.device), valid_mask(chosen).to(self.device)
            states = model(input_ids=tokens, attention_mask=valid.long()).last_hidden_state
            vectors[batch] = pool(states, valid, "mean", True).float().cpu()
        return vectors

    def best(self, theirs: Callable[[BatchSize], Encoder]) -> tuple[BatchSize, str]:
        """Find the fastest batch size of a model, from a sample of batches of each."""
        rates = {}
        for batch_size in self.workload.batch_sizes:
            go, batches = theirs(BatchSize(rows=len(self.texts))), batch_size.batches(self.lengths)
            some = batches[EVERY // 2 :: EVERY] or batches
            go([self.texts[i] for i in some[0]])
            synchronize(self.device)
            began = time.perf_counter()
            for batch in some:
                go([self.texts[i] for i in batch])
            synchronize(self.device)
            speed = self.tokens(some) / (time.perf_counter() - began)  # with padding
            rates[batch_size] = speed * len(self.texts) / self.tokens(batches)
        order = sorted(rates, key=lambda batch_size: -rates[batch_size])
        padding = 1 - sum(self.lengths) / self.tokens(order[0].batches(self.lengths))
        tried = ", ".join(f"{batch_size} {rates[batch_size]:.3g}" for batch_size in order)
        return order[0], f"HF in batches of (texts/s, tried once): {tried}; padding with the first {padding:.1%}"

    def tokens(self, batches: list[list[int]]) -> int:
        return sum(len(batch) * max(self.lengths[i] for i in batch) for batch in batches)


def encode_with_specials(text: TrainedTokenizer, texts: list[str]) -> list[Ids]:
    return [np.array([text.start, *ids, text.end]) for ids in text.encode(texts)]


def count_texts(go: Encoder, texts: list[str]) -> Callable[[int], float]:
    return lambda number: float(len(go(texts)))
