"""Translation by CTC: all tokens at once, with blanks, at the positions of copied source tokens."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from ...config.decode import NEUTRAL_SAMPLING
from ...config.strategies import ParallelStrategy
from ...data.datasets.pairs import PairDataset
from ...decode import Hypothesis
from ...decode.parallel import decoding as parallel
from ...errors import UserError
from ...families.protocols import CtcTranslationModel, as_module
from ...look import AttentionView, ViewAxis, Which, attention_sites, record_attention
from ...parts.inputs import Inputs
from ...parts.parallel.ctc import LEAST, LOG_FLOOR, PrefixScorer, force_align
from ...training.objective import Objective
from ..parallel.data import CtcTranslationDataset
from ..parallel.objectives import CtcTranslationObjective
from ..translate.task import TranslateJob
from .task import ParallelPredictor, refuse_packed


class CtcTranslator(ParallelPredictor):
    """Translation by the likeliest path of tokens and blanks; PAD is the blank.

    The score of a translation is that of its path. Scores of known targets sum over all paths, and their tokens have
    the log-probabilities of prefixes; a token that no path contains has `LOG_FLOOR`.
    """

    validation_decode: Mapping[str, Any] = {"kind": "argmax", "nbest": 1, **NEUTRAL_SAMPLING}

    @property
    def ctc_model(self) -> CtcTranslationModel:
        """The model with its type."""
        return cast(CtcTranslationModel, self.model)

    @cached_property
    def hidden(self) -> Tensor:
        never = {*self.suppressed, self.target.end} - {self.target.pad}
        return torch.tensor(sorted(never), device=self.device)

    def candidates(self, strategy: ParallelStrategy) -> int:
        return 1

    def write(
        self, source: tuple[Tensor, Tensor], texts: list[str], limits: Tensor, strategy: ParallelStrategy
    ) -> list[Hypothesis]:
        paths = parallel.decode_ctc_path(self.ctc_model, source, self.hidden).rows()
        hypotheses = []
        for (path, logprob), limit in zip(paths, limits.tolist(), strict=True):
            tokens = parallel.collapse_path(path, self.target.pad)[:limit]
            hypotheses.append(
                parallel.make_hypothesis(tokens, logprob, strategy.length_penalty, strategy.merge_repeats)
            )
        return hypotheses

    def look(self, text: str, target: str | None = None, layer: Which = None) -> AttentionView:
        """The attention weights. The target axis shows the copies of the source, which have no log-probabilities."""
        return replace(super().look(text, target, layer), logprobs=())

    def view_axes(self, source: list[int], target: list[int]) -> dict[str, ViewAxis]:
        tokens = self.source.tokens(source)
        copies = ViewAxis.of_tokens("target", [token for token in tokens for _ in range(self.ctc_model.upsample)])
        return super().view_axes(source, target) | {"target": copies, "prefix": copies}

    def _target_logprobs(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        return self._prefix_logprobs(*self._path_logits(sources), targets)

    def _path_logits(self, sources: list[list[int]]) -> tuple[Tensor, Tensor]:
        """The logits of all copies (rows, copies, vocab), and which are valid."""
        rows, model = [[*tokens, self.source.end] for tokens in sources], self.ctc_model
        values, valid = parallel.padded_source(rows, self.source.pad, self.device)
        copies, filled = parallel.upsample(values, valid, model.upsample)
        encoded = model.encode(parallel.source_inputs(values, valid))
        return model.logits(model.decode(Inputs("tokens", copies, filled), encoded)), filled

    def _prefix_logprobs(self, logits: Tensor, filled: Tensor, targets: list[list[int]]) -> list[list[float]]:
        """ln p(token | the tokens before it) of targets, and of END."""
        scorer = PrefixScorer(logits, filled, self.target.pad, self.target.start, self.target.end)
        state, width = scorer.initial(), max(map(len, targets))
        totals = [state.logprob[:, 0]]
        for place in range(width):
            tokens = [row[place] if place < len(row) else self.target.start for row in targets]  # START changes nothing
            state = scorer.advance(state, torch.tensor(tokens, device=logits.device)[:, None])
            totals.append(state.logprob[:, 0])
        totals.append(torch.logaddexp(state.nonblank, state.blank)[:, 0, -1])
        cumulative = torch.stack(totals, 1).clamp(min=LEAST)
        steps = cumulative.diff(dim=1).clamp(min=LOG_FLOOR).tolist()
        return [[*row[: len(target)], row[-1]] for row, target in zip(steps, targets, strict=True)]

    @torch.no_grad()
    def _views(self, sources: list[list[int]], targets: list[list[int]]) -> Iterator[tuple[list[float], AttentionView]]:
        """The cross-attention of a token is that of its first copy in the likeliest path."""
        model = as_module(self.model)
        sites = [site for site in attention_sites(model) if site.kind == "cross"]
        for source, target in zip(sources, targets, strict=True):
            with record_attention(model, [site.path for site in sites]) as maps:
                logits, filled = self._path_logits([source])
            (logprobs,) = self._prefix_logprobs(logits, filled, [target])
            path = logits[0, filled[0]].float().log_softmax(-1)
            try:
                spans, _ = force_align(path, target, self.target.pad)
            except ValueError as error:
                raise UserError(f"a target does not fit its source: {error} (model.upsample)") from error
            places = [first for first, _ in spans]
            layers = [(site, maps[site.path].cpu()[0][:, places]) for site in sites]
            yield logprobs, AttentionView.of(layers, super().view_axes(source, target))


class CtcTranslationJob(TranslateJob):
    """Pairs with copies of their source tokens."""

    def make_objective(self) -> Objective:
        return CtcTranslationObjective(self.predictor.module, self.predictor.target.pad)

    def make_dataset(self) -> PairDataset:
        predictor, run = self.predictor, self.run
        refuse_packed(run.data.packed, run.model.family)
        arguments = self.splits["train"], predictor.source, predictor.target, run.data, run.train
        return CtcTranslationDataset(*arguments, predictor.context, run.model.upsample)
