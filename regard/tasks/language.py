"""Language: the text so far in, the next token out. `Writer` is what people use, `Lesson` is what the loop trains."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config import Run, Sides, family_of
from ..data.batches import sorted_batches
from ..data.corpus import Carried, Corpus, Window, Windows, corpus, evaluation
from ..data.tokenizers import Text, Tokenizer, load
from ..decode import Ensemble, Filter, Suppress
from ..decode.ensemble import mean
from ..errors import Mistake
from ..look import Glance, recording
from ..parts import Cache, Mask
from ..parts.losses import smoothed
from .compose import Composer, Said

Model = Any  # a language model: decode, logits, start, step, recall, context
END = "■"  # how details and pictures show the END symbol
START = "□"


class Writer(Composer):
    """A model with its vocabulary. It makes no difference to a text which others it is continued or scored with."""

    sides, field = 1, "prompt"  # an example is one text; a JSON record has it there

    def __init__(
        self,
        run: Run,
        model: Model,
        tokenizer: Tokenizer,
        device: torch.device,
        filters: tuple[Filter, ...] | None = None,
    ) -> None:
        self.run, self.tokenizer, self.device = run, tokenizer, device
        self.model: Model = model.to(device).eval()
        never = [each for each in (tokenizer.pad, tokenizer.start) if each != tokenizer.end]
        self.filters = (Suppress(never),) if filters is None else filters

    # --- what people ask ---------------------------------------------------------------------------------------

    def predict(self, prompts: str | Sequence[str], details: bool = False, **decode: Any) -> Any:
        """How every prompt goes on, in order; one prompt gives one text, decode.nbest several give a list of texts.
        `decode` takes the names of decode.*."""
        if isinstance(prompts, str):
            return self.predict([prompts], details, **decode)[0]
        how = self._how(decode)
        ids = self._prompts(prompts, how)
        found = self.continued(prompts, ids, how)
        if details:
            return [self._record(each, some, how.length_penalty) for each, some in zip(ids, found, strict=True)]
        texts = [[said.text for said in some] for some in found]
        return [some if how.nbest > 1 else (some or [""])[0] for some in texts]

    def score(self, texts: str | Sequence[str], details: bool = False) -> Any:
        """ln P(text), from its beginning to END; with details also per token."""
        if isinstance(texts, str):
            return self.score([texts], details)[0]
        ids = self.encoded(texts)
        wanted = [[*each, self.tokenizer.end] for each in ids]
        logprobs = self.logprobs([[self.tokenizer.start]] * len(ids), wanted)
        totals = [math.fsum(each) for each in logprobs]
        if not details:
            return totals
        return [
            {"score": total, "pieces": [*self.tokenizer.pieces(each), END], "logprobs": some}
            for total, each, some in zip(totals, ids, logprobs, strict=True)
        ]

    def look(self, text: str, target: str | None = None) -> Glance:
        """Where every attention looks while the model reads `text`, and `target` behind it."""
        if not text.strip():
            raise Mistake("there is nothing to look at in an empty text; give a sentence")
        (ids,) = self.encoded([text + (target or "")])
        self._refuse_long(len(ids) + 1, "the text")
        seen = self.model.members[0] if isinstance(self.model, Ensemble) else self.model
        with recording(seen) as maps, torch.no_grad():
            seen.decode(torch.tensor([[self.tokenizer.start, *ids]], device=self.device))
        return Glance([START, *self.tokenizer.pieces(ids)], {path: each[0].cpu() for path, each in maps.items()})

    def evaluate(self, sides: Sides | None = None) -> dict[str, Any]:
        """Figures over running text; without `sides`, over the run's test part."""
        return self.examine(sides)[0]

    def examine(self, sides: Sides | None = None) -> tuple[dict[str, Any], None, str]:
        """What `evaluate` says; there are no answers to compare; and what stands for the text."""
        texts = part(self.run, "test", self.tokenizer, sides)
        return self.measured(texts), None, f"{texts.bytes} {texts.characters} {texts.words}"
