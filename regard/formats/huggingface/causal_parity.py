"""The self-check of an exported language model: the same tokens, logits and greedy texts as the run."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from ...decode import SearchSettings, run_search
from ...families import gpt
from ...files import read_json
from ...parts import Inputs
from ..parity import SAMPLE_COUNT, MatchCount, check_close, export_error, quiet
from . import causal, gpt2, llama

if TYPE_CHECKING:
    from ...tasks.language.task import LanguagePredictor

STEPS = 16  # tokens by which every text is continued


class CausalSample:
    """Tokens, logits and continuations of the run for a few texts of random tokens, which are hard to tokenize."""

    def __init__(self, predictor: "LanguagePredictor") -> None:
        self.model, self.tokenizer = cast(gpt.Model, predictor.model), predictor.tokenizer
        generator = torch.Generator().manual_seed(1)
        rows = torch.randint(4, self.tokenizer.size, (SAMPLE_COUNT, 12), generator=generator).tolist()
        texts = self.tokenizer.decode([row[: 5 + i] for i, row in enumerate(rows)])
        self.texts = [*texts, "</s> is <s> text"]
        self.ids = self.tokenizer.encode(self.texts)
        prompts = [[self.tokenizer.start, *ids] for ids in self.ids]
        longest = min(max(map(len, prompts)), (self.model.context or 10**9) - STEPS)
        self.prompts = [prompt[: max(longest, 1)] for prompt in prompts]
        self.logits = self.logits_of(self.model)
        self.outputs = self.continuations(self.model)

    def batch(self, left: bool = False) -> tuple[Tensor, Tensor]:
        """(tokens, valid), padded on the right as regard does, or on the left as transformers does."""
        longest = max(map(len, self.prompts))
        pads = [[self.tokenizer.pad] * (longest - len(row)) for row in self.prompts]
        rows = [pad + row if left else row + pad for row, pad in zip(self.prompts, pads, strict=True)]
        valid = torch.arange(longest) < torch.tensor([[len(row)] for row in self.prompts])
        return torch.tensor(rows), valid.flip(1) if left else valid

    @torch.no_grad()
    def logits_of(self, model: gpt.Model) -> Tensor:
        tokens, valid = self.batch()
        logits: Tensor = model(Inputs("tokens", tokens, valid))
        return logits[valid]

    def continuations(self, model: gpt.Model) -> list[str]:
        tokens, valid = self.batch()
        limits = torch.full((len(tokens),), STEPS)
        settings = SearchSettings(self.tokenizer.end, beam=1, early_stopping="first")
        hypotheses = run_search(model, model.start(None, len(tokens)), tokens, limits, settings, valid)
        return self.token_texts([best[0].tokens for best in hypotheses])

    def token_texts(self, rows: list[list[int]]) -> list[str]:
        """Texts that differ wherever the tokens do, also for tokens of half a character."""
        return [" ".join(self.tokenizer.tokens(row)) for row in rows]

    def compare(
        self, reader: str, ids: list[list[int]], logits: Tensor, outputs: list[str], count: MatchCount
    ) -> float:
        for text, theirs, ours in zip(self.texts, ids, self.ids, strict=True):
            if theirs != ours:
                raise export_error(f"{reader} gives other tokens for {text!r}: {theirs} and not {ours}")
        count.add(reader, outputs, self.outputs)
        return check_close(f"{reader} gives logits", logits, self.logits)


def check(predictor: "LanguagePredictor", draft: Path, precision: str) -> str:
    """Compare the run with the folder as regard reads it, and as transformers does if installed; report the result."""
    sample, count = CausalSample(predictor), MatchCount()
    config = read_json(draft / "config.json")
    _, model = (gpt2 if config["model_type"] == "gpt2" else llama).read(draft, config)
    ids = causal.tokenizer(draft, config).encode(sample.texts)
    difference = sample.compare("the folder", ids, sample.logits_of(model), sample.continuations(model), count)
    readers = ["regard"]
    if find_spec("transformers") is not None:
        import transformers

        with quiet(transformers):
            difference = max(difference, _compare_transformers(sample, draft, transformers, count))
        readers.append(f"transformers {transformers.__version__}")
    return (
        f"{len(sample.texts)} texts with {' and '.join(readers)}: {count}, logits apart by {difference:.1g} (relative)"
    )


@torch.no_grad()
def _compare_transformers(sample: CausalSample, draft: Path, hf: Any, count: MatchCount) -> float:
    model, tokenizer = hf.AutoModelForCausalLM.from_pretrained(draft).eval(), hf.AutoTokenizer.from_pretrained(draft)
    (tokens, valid), (left_tokens, left_valid) = sample.batch(), sample.batch(left=True)
    logits = model(tokens, attention_mask=valid.long()).logits[valid]
    end = sample.tokenizer.end
    plain = hf.GenerationConfig(max_new_tokens=STEPS, eos_token_id=end, pad_token_id=sample.tokenizer.pad)  # greedy
    model.generation_config = hf.GenerationConfig()  # the preferences of a model are not compared
    output = model.generate(left_tokens, attention_mask=left_valid.long(), generation_config=plain)
    rows = [row[: row.index(end)] if end in row else row for row in output[:, left_tokens.size(1) :].tolist()]
    ids = tokenizer(sample.texts).input_ids
    if getattr(sample.tokenizer, "adds_start", False):  # an imported vocabulary may put START before every text
        ids = [row[1:] if row[0] == sample.tokenizer.start else row for row in ids]
    return sample.compare("transformers", ids, logits, sample.token_texts(rows), count)
