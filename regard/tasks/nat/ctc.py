"""Translation by CTC: all tokens at once, with blanks, at the positions of copied source tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...config.strategies import ParallelStrategy
from ...data.datasets.collate import pad_tokens
from ...decode import Hypothesis
from ...decode.engine.jobs import ModelContext
from ...decode.engine.passes import KnownTarget, Score, TokenScores, TokenTrace, Trace
from ...decode.parallel import decoding as parallel
from ...errors import UserError
from ...look import AttentionView, ViewAxis, Which, attention_sites, record_attention
from ...modalities.base import EncodedInput, Modality, Raw
from ...parts import Encoded
from ...parts.inputs import Inputs
from ...parts.parallel.ctc import LEAST, LOG_FLOOR, PrefixScorer, force_align
from .writers import ParallelWriter, TokenTable


def path_logits(jobs: Sequence[KnownTarget[Any]], context: ModelContext) -> tuple[Tensor, Tensor, Encoded]:
    """The logits of all copies (rows, copies, vocab), which are valid, and the output of the encoder."""
    assert context.tokenizer is not None
    model = context.model
    source = pad_tokens([job.source.values[0].numpy() for job in jobs], context.tokenizer.pad).to(context.device)
    assert source.valid is not None
    copies, filled = parallel.upsample(source.values, source.valid, model.upsample)
    encoded = model.encode(parallel.source_inputs(source.values, source.valid))
    return model.logits(model.decode(Inputs("tokens", copies, filled), encoded)), filled, encoded


def prefix_logprobs(
    logits: Tensor, filled: Tensor, targets: Sequence[Sequence[int]], context: ModelContext
) -> list[list[float]]:
    """ln p(token | the tokens before it) of targets, and of END."""
    tokenizer = context.tokenizer
    assert tokenizer is not None
    scorer = PrefixScorer(logits, filled, tokenizer.pad, tokenizer.start, tokenizer.end)
    state, width = scorer.initial(), max(map(len, targets))
    totals = [state.logprob[:, 0]]
    for place in range(width):
        tokens = [row[place] if place < len(row) else tokenizer.start for row in targets]  # START changes nothing
        state = scorer.advance(state, torch.tensor(tokens, device=logits.device)[:, None])
        totals.append(state.logprob[:, 0])
    totals.append(torch.logaddexp(state.nonblank, state.blank)[:, 0, -1])
    cumulative = torch.stack(totals, 1).clamp(min=LEAST)
    steps = cumulative.diff(dim=1).clamp(min=LOG_FLOOR).tolist()
    return [[*row[: len(target)], row[-1]] for row, target in zip(steps, targets, strict=True)]


class CtcScore(Score):
    """A known target, summed over all paths; its tokens have the log-probabilities of prefixes."""

    def read(self, jobs: Sequence[KnownTarget[Any]], context: ModelContext) -> tuple[list[TokenScores], Encoded]:
        logits, filled, encoded = path_logits(jobs, context)
        rows = prefix_logprobs(logits, filled, [job.target for job in jobs], context)
        return [TokenScores(row, []) for row in rows], encoded


class CtcTrace(Trace):
    """`CtcScore` with the cross-attention of each token: that of its first copy in the likeliest path."""

    @torch.no_grad()
    def run(self, jobs: Sequence["Trace"], context: ModelContext) -> list[TokenTrace]:
        return [self._trace(job, context) for job in jobs]

    def _trace(self, job: Trace, context: ModelContext) -> TokenTrace:
        assert context.tokenizer is not None
        sites = [site for site in attention_sites(context.model) if site.kind == "cross"]
        with record_attention(context.model, [site.path for site in sites]) as maps:
            logits, filled, encoded = path_logits([job], context)
        (logprobs,) = prefix_logprobs(logits, filled, [job.target], context)
        path = logits[0, filled[0]].float().log_softmax(-1)
        try:
            spans, _ = force_align(path, job.target, context.tokenizer.pad)
        except ValueError as error:
            raise UserError(f"a target does not fit its source: {error} (model.upsample)") from error
        places = [first for first, _ in spans]
        layers = [(site, maps[site.path].cpu()[0][:, places]) for site in sites]
        return TokenTrace(logprobs, [], layers, encoded.states[0])


@dataclass(eq=False)
class CtcWriter(ParallelWriter):
    """Translation by the likeliest path of tokens and blanks; PAD is the blank.

    The score of a translation is that of its path. Scores of known targets sum over all paths; a token that no path
    contains has `LOG_FLOOR`.
    """

    validation_decode: ClassVar[Mapping[str, Any]] = {"strategy": {"kind": "argmax"}}
    score, trace = CtcScore, CtcTrace

    @cached_property
    def hidden(self) -> Tensor:
        never = {*self.suppressed, self.target.end} - {self.target.pad}
        return torch.tensor(sorted(never), device=self.context.device)

    def candidates(self, strategy: ParallelStrategy) -> int:
        return 1

    def decode(
        self, source: TokenTable, texts: Sequence[str], limits: Tensor, strategy: ParallelStrategy
    ) -> list[Hypothesis]:
        paths = parallel.decode_ctc_path(self.context.model, source, self.hidden).rows()
        hypotheses = []
        for (path, logprob), limit in zip(paths, limits.tolist(), strict=True):
            tokens = parallel.collapse_path(path, self.target.pad)[:limit]
            hypotheses.append(
                parallel.make_hypothesis(tokens, logprob, strategy.length_penalty, strategy.merge_repeats)
            )
        return hypotheses

    async def view(
        self,
        modality: Modality[Raw],
        source: EncodedInput,
        tokens: Sequence[int],
        layer: Which = None,
        title: str = "",
        prompt: tuple[int, ...] = (),
    ) -> AttentionView:
        """The attention weights. The target axis shows the copies of the source, which have no log-probabilities."""
        return replace(await super().view(modality, source, tokens, layer, title, prompt), logprobs=())

    def target_axes(self, source: EncodedInput, tokens: Sequence[int], prompt: Sequence[int]) -> dict[str, ViewAxis]:
        read = self.target.tokens(np.repeat(source.array[:-1], self.context.model.upsample).tolist())
        copies = ViewAxis.of_tokens("target", read)
        return {"target": copies, "prefix": copies}
