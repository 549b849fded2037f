"""Models are re-entrant: what a call reads or generates does not depend on calls in other threads."""

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from helpers.families import CASES, MEDIA_CASES, case_subject, sample
from torch import Tensor, nn

from regard.adapt import tune
from regard.adapt.precision import FusedQKVAttention, PrepackedLinear, apply_precision
from regard.config.tuning import Adapter, Lora, Prefix, Prompt
from regard.parts import Attention, Inputs
from regard.testing.subjects import TargetTokens, Writer

THREADS, CALLS = 6, 3
METHODS = {
    "lora": Lora(rank=2, pattern="(?<!score)$"), "adapter": Adapter(bottleneck=4), "prompt": Prompt(length=3),
    "prefix": Prefix(length=2),
}  # fmt: skip
FIRST = [*{family: (family, name) for family, name in reversed(CASES + MEDIA_CASES)}.values()]  # one case per family
KINDS = [case for case in FIRST if case[0] in ("gpt", "t5", "bert", "vit")]


@pytest.mark.parametrize("case", FIRST, ids=" ".join)
def test_threads_read_and_generate_what_one_does(case: tuple[str, str]) -> None:
    threads_agree(case, case_subject(case).module)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", KINDS, ids=" ".join)
def test_threads_share_a_tuned_model(case: tuple[str, str], method: str) -> None:
    threads_agree(case, tune.attach(case_subject(case).module, METHODS[method], init_tokens=[5, 9]).eval())


@pytest.mark.parametrize("case", [("gpt", "gpt2"), ("bert", "paper")], ids=" ".join)
def test_threads_share_the_fused_weights_of_a_fast_model(case: tuple[str, str]) -> None:
    """The fused and reordered weights are made by the first calls, several at once."""
    model = apply_precision(case_subject(case).module, "fp32")
    assert any(isinstance(part, PrepackedLinear) for part in model.modules())
    for part in model.modules():
        if type(part) is Attention:
            part.__class__ = FusedQKVAttention  # as on a GPU
    threads_agree(case, model)


def threads_agree(case: tuple[str, str], model: nn.Module) -> None:
    subject, texts = case_subject(case), [sample(case, 2, 3 + i) for i in range(THREADS)]
    subject.module = model

    @torch.no_grad()
    def call(given: Inputs) -> Tensor:
        if isinstance(subject, TargetTokens) and given.modality != "tokens":
            return torch.cat([*subject.read(given), *subject.step(subject.target[:2], subject.start(2, None))])
        if isinstance(subject, Writer):
            return torch.cat([subject.write(given.values), subject.step(given.values, subject.start(2, None))])
        return torch.stack(subject.read(given))

    barrier = Barrier(THREADS)

    def work(number: int) -> list[Tensor]:
        barrier.wait()
        return [call(texts[number]) for _ in range(CALLS)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(work, range(THREADS)))
    finally:
        sys.setswitchinterval(interval)
    for tokens, results in zip(texts, found, strict=True):
        wanted = call(tokens)
        assert all(result.equal(wanted) for result in results)
