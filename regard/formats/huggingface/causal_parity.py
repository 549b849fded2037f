"""An exported language model checks itself before it says done: the same tokens, logits and greedy texts as the run."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...decode import SearchSettings, search
from ...files import read_json
from ...parts import Mask
from ..parity import SAMPLE_COUNT, MatchCount, check_close, export_error, quiet
from . import causal, gpt2, llama

STEPS = 16  # tokens that every text is continued by


class CausalSample:
    """What the run itself makes of a few texts: pieces at random, which is hard on a tokenizer and as good as any."""

    def __init__(self, system: Any) -> None:
        self.model, self.text = system.model, system.tokenizer
        draw = torch.Generator().manual_seed(1)
        rows = torch.randint(4, self.text.size, (SAMPLE_COUNT, 12), generator=draw).tolist()
        texts = self.text.decode([row[: 5 + i] for i, row in enumerate(rows)])
        self.texts = [*texts, "</s> is <s> text"]
        self.ids = self.text.encode(self.texts)
        prompts = [[self.text.start, *ids] for ids in self.ids]
        longest = min(max(map(len, prompts)), (self.model.context or 10**9) - STEPS)
        self.prompts = [prompt[: max(longest, 1)] for prompt in prompts]
        self.logits = self.logits_of(self.model)
        self.said = self.continuations(self.model)

    def batch(self, left: bool = False) -> tuple[Tensor, Tensor]:
        """(tokens, real), padded as is usual here, or on the left as is usual there."""
        most = max(map(len, self.prompts))
        pads = [[self.text.pad] * (most - len(row)) for row in self.prompts]
        rows = [pad + row if left else row + pad for row, pad in zip(self.prompts, pads, strict=True)]
        real = torch.arange(most) < torch.tensor([[len(row)] for row in self.prompts])
        return torch.tensor(rows), real.flip(1) if left else real

    @torch.no_grad()
    def logits_of(self, model: Any) -> Tensor:
        tokens, real = self.batch()
        found: Tensor = model(tokens, Mask(key_valid=real))[real]
        return found

    def continuations(self, model: Any) -> list[str]:
        tokens, real = self.batch()
        limits = torch.full((len(tokens),), STEPS)
        settings = SearchSettings(self.text.end, beam=1, early_stopping="first")
        return self.token_texts(
            [best[0].tokens for best in search(model, model.start(len(tokens)), tokens, limits, settings, real)]
        )

    def token_texts(self, rows: list[list[int]]) -> list[str]:
        """Tokens as texts that differ where they do, also those of half a character."""
        return [" ".join(self.text.pieces(row)) for row in rows]

    def compare(self, who: str, ids: list[list[int]], logits: Tensor, said: list[str], tally: MatchCount) -> float:
        for text, one, other in zip(self.texts, ids, self.ids, strict=True):
            if one != other:
                raise export_error(f"{who} gives other tokens for {text!r}: {one} and not {other}")
        tally.add(who, said, self.said)
        return check_close(who, (logits - self.logits).abs().max().item())


def check(system: Any, draft: Path, precision: str) -> str:
    """The folder by our own reader, and by transformers where it is installed; what was found, in words."""
    sample, tally = CausalSample(system), MatchCount()
    config = read_json(draft / "config.json")
    _, model = (gpt2 if config["model_type"] == "gpt2" else llama).read(draft, config)
    ids = causal.tokenizer(draft, config).encode(sample.texts)
    apart = sample.compare("the folder", ids, sample.logits_of(model), sample.continuations(model), tally)
    who = ["regard"]
    if find_spec("transformers") is not None:
        import transformers

        with quiet(transformers):
            apart = max(apart, _compare_transformers(sample, draft, transformers, tally))
        who.append(f"transformers {transformers.__version__}")
    return f"{len(sample.texts)} texts with {' and '.join(who)}: {tally}, logits apart by {apart:.1g}"


@torch.no_grad()
def _compare_transformers(sample: CausalSample, draft: Path, hf: Any, tally: MatchCount) -> float:
    model, text = hf.AutoModelForCausalLM.from_pretrained(draft).eval(), hf.AutoTokenizer.from_pretrained(draft)
    (tokens, real), (padded, there) = sample.batch(), sample.batch(left=True)
    logits = model(tokens, attention_mask=real.long()).logits[real]
    greedy = {"do_sample": False, "num_beams": 1, "repetition_penalty": 1.0, "suppress_tokens": None}
    made = model.generate(padded, attention_mask=there.long(), max_new_tokens=STEPS, **greedy)
    rows = [
        row[: row.index(sample.text.end)] if sample.text.end in row else row
        for row in made[:, padded.size(1) :].tolist()
    ]
    ids = text(sample.texts).input_ids
    if getattr(sample.text, "adds_start", False):  # a borrowed vocabulary may put START before every text
        ids = [row[1:] if row[0] == sample.text.start else row for row in ids]
    return sample.compare("transformers", ids, logits, sample.token_texts(rows), tally)
