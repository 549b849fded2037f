"""Tuned models on a GPU, with CUDA graphs, bf16 and compilation. Skipped without a GPU."""

import pytest
import torch
from helpers.families import ids, sample
from helpers.inputs import inputs
from test_tune_laws import METHODS, tuned_model, tuned_subject

from regard.adapt import tune
from regard.decode import SearchSettings, run_search

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CASE = ("gpt", "gpt2")


def generate(model, device: str) -> list[list[int]]:
    prompt = torch.tensor([[5, 9, 11], [7, 30, 6]], device=device)
    limits = torch.full((2,), 12, device=device)
    found = run_search(
        model, model.start(None, 2, 16), prompt, limits, SearchSettings(end=3, beam=1, early_stopping="first")
    )
    return [best[0].tokens for best in found]


@pytest.mark.parametrize("method", METHODS)
def test_generation_equals_that_on_a_cpu(method):
    wanted, model = generate(tuned_model(CASE, method), "cpu"), tuned_model(CASE, method).cuda()
    plain = generate(tune.detach(tuned_model(CASE, method)).cuda(), "cuda")
    assert generate(model, "cuda") == wanted == generate(model, "cuda")  # the second time from a CUDA graph
    assert plain != wanted


@pytest.mark.parametrize("method", METHODS)
def test_training_in_bf16_and_compiled(method):
    model, tokens = tuned_model(CASE, method).cuda().train(), ids(4, 32).cuda()
    loss_of = torch.compile(lambda x: model(inputs(x)).float().logsumexp(-1).mean())
    with torch.autocast("cuda", torch.bfloat16):
        loss_of(tokens).backward()
    grads = [each.grad for each in model.parameters() if each.requires_grad]
    assert all(each is not None and each.isfinite().all() for each in grads)
    assert all(each.grad is None for each in model.parameters() if not each.requires_grad)


@pytest.mark.parametrize("method", ["lora", "adapter", "prompt", "prefix"])
def test_training_of_images_in_bf16_and_compiled(method):
    subject, image = tuned_subject((("vit", "paper"), method)), sample(("vit", "paper"), 4, 0).to("cuda")
    model = subject.module.cuda().train()
    loss_of = torch.compile(lambda given: torch.stack(subject.read(given)).float().logsumexp(-1).mean())
    with torch.autocast("cuda", torch.bfloat16):
        loss_of(image).backward()
    grads = [each.grad for each in model.parameters() if each.requires_grad]
    assert all(each is not None and each.isfinite().all() for each in grads)
    assert all(each.grad is None for each in model.parameters() if not each.requires_grad)


def test_tuned_models_share_their_base(tmp_path):
    """Two tuned models over one base hold its weights once."""
    from helpers import reads

    import regard

    base = reads.train_run("classify", tmp_path / "base", train__steps=2)
    parts = {"data.train": str(base.parent / "train.txt"), "start": str(base), "train.steps": 1}
    for kind in ("lora", "prefix"):
        own = {"tune.kind": kind, "train.tensorboard": False, "device": "cpu"}
        regard.train("classify", {**parts, **own}, out=tmp_path / kind)
    many = regard.load(base, tune=[tmp_path / "lora", tmp_path / "prefix"], device="cuda")
    places = {system.model.embed.weight.data_ptr() for system in many.predictors.values()}
    assert len(places) == 1 and many.use("lora").model.embed.weight.is_cuda
    assert many.use("prefix").predict("the day") in ("glad", "sad")
