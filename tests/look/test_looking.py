"""Looking at attention: a second pass over a generated text shows what the generation did, in every family."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from helpers.families import CASES, MEDIA_CASES, Case, case_subject, output_of

import regard
from regard.config.registry import FAMILIES
from regard.errors import UserError
from regard.look import attention_sites, record, record_layers, rollout
from regard.parts.kernels import SoftmaxKernel
from regard.tasks.language.scoring import generation_logits
from regard.testing.laws import require_close
from regard.testing.subjects import Writer

OLD = Path(__file__).parents[1] / "old"
TEXT = "the cat sees the dog"
WRITERS = [case for case in [*CASES, *MEDIA_CASES] if output_of(case) in ("target", "next")]


@pytest.mark.parametrize("family", sorted({family for family, _ in WRITERS}))
@torch.no_grad()
def test_a_second_pass_has_the_logits_and_weights_of_a_generation(family: str) -> None:
    compared = sum(compare_passes(case) for case in WRITERS if case[0] == family)
    assert compared >= 2 or family in ("rnn", "cnn")  # whose decoders attend to the source alone


def compare_passes(case: Case) -> int:
    """Generate greedily with a cache, then read what was generated, and record both.

    It returns how many layers of the decoder agree: sums of random features forget their keys, and positions that
    include the mask do not tell them.
    """
    subject = case_subject(case)
    assert isinstance(subject, Writer)
    model = subject.module
    if not attention_sites(model):  # a recurrent language model
        return 0
    compared = 0
    with record_layers(model) as steps:
        cache, tokens, logits = subject.start(1, None), [4], list[torch.Tensor]()
        for _ in range(6):
            logits.append(subject.step(torch.tensor([tokens[-1:]]), cache)[0, 0])
            tokens.append(int(logits[-1].argmax()))
    with record_layers(model) as second:
        found = subject.write(torch.tensor([tokens[:-1]]), [0])[0]
    require_close(found, torch.stack(logits), f"{case}: the second pass has other logits")
    generated = {(site.kind, site.layer): weights for site, weights in steps.layers()}
    for site, weights in second.layers():
        assert weights.shape[0] == site.heads
        if site.kind == "cross":  # a step has one query
            require_close(generated[site.kind, site.layer][:, 0], weights[:, -1], f"{case}: {site.path} differs")
        elif site.kind == "decoder" and generated[site.kind, site.layer].shape == weights.shape:
            require_close(generated[site.kind, site.layer], weights, f"{case}: {site.path} differs")
            compared += 1
    return compared


@torch.no_grad()
def test_a_model_with_memory_attends_as_far_as_it_generates() -> None:
    """Transformer-XL: tokens that are generated do not see what is older than the memory."""
    subject = case_subject(next(case for case in WRITERS if case[0] == "xl"), memory=4)
    tokens = torch.randint(4, 40, (1, 12), generator=torch.Generator().manual_seed(1))
    with record_layers(subject.module) as recorder:
        found = generation_logits(subject.module, tokens[0].tolist(), 5, torch.device("cpu"))  # type: ignore[arg-type]
    cache = subject.start(1, None)  # type: ignore[attr-defined]
    parts = [tokens[:, :5], *tokens[:, 5:].split(1, 1)]
    wanted = torch.cat([subject.step(part, cache)[0] for part in parts])  # type: ignore[attr-defined]
    require_close(found, wanted, "the logits differ")
    for _, weights in recorder.layers():
        assert weights.shape[1:] == (12, 12) and torch.allclose(weights.sum(-1), torch.ones(1), atol=1e-5)
        assert weights[:, 11, :7].abs().max() == 0 and weights[:, 11, 7:].min() > 0


def test_every_family_names_its_attention() -> None:
    found: dict[str, set[str]] = {}
    for family, name in dict(reversed([*CASES, *MEDIA_CASES])).items():  # the first variant of each
        found[family] = {site.kind for site in attention_sites(case_subject((family, name)).module)}
    both = {"encoder", "decoder", "cross"}
    assert {
        family: found[family] for family in ("transformer", "t5", "speech", "whisper", "detr", "cmlm")
    } == dict.fromkeys(("transformer", "t5", "speech", "whisper", "detr", "cmlm"), both)
    assert found["nat"] == both | {"order"} and found["rnn"] == {"cross"} and found["xl"] == {"decoder"}
    assert found["vit"] == found["bert"] == found["longformer"] == {"encoder"} and {*found} == {*FAMILIES}
    notes = [attention_sites(case_subject(("bert", name)).module)[0].note for name in ("favor", "lowrank", "paper")]
    assert notes[0].startswith("implied weights") and notes[1].startswith("projected keys") and not notes[2]


def test_only_the_layers_that_are_asked_for_are_computed() -> None:
    predictor = regard.load(OLD / "spans-t5")
    with mock.patch.object(SoftmaxKernel, "weights", autospec=True, side_effect=SoftmaxKernel.weights) as weights:
        predictor.predict(TEXT, nbest=1)
        assert not weights.called  # nobody looks
        view = predictor.look(TEXT, "a", layer=2)
    assert weights.call_count == len(view.maps) == 2 and {each.layer for each in view.maps} == {2}
    assert view.kinds == ["decoder", "cross"] and view.counts == {"encoder": 1, "decoder": 2, "cross": 2}
    with pytest.raises(UserError, match="layer 1 is not recorded; look without layer=, or with layer=1"):
        view.weights(layer=1)
    with pytest.raises(UserError, match="layer is 3; expected a number from 1 to 2, or all"):
        predictor.look(TEXT, layer=3)
    whole = predictor.look(TEXT, "a")
    assert np.array_equal(whole.weights(2, 1), view.weights(2, 1)) and whole.weights(2, "all").shape[0] == 2
    with pytest.raises(UserError, match="head is 9; expected a number from 1 to 2, or all"):
        whole.weights(head=9)
    with pytest.raises(UserError, match="kind is 'order', but this model has the attention encoder, decoder, cross"):
        whole.weights(kind="order")


def test_global_queries_replace_their_rows() -> None:
    """Longformer: the first token attends to everything, by projections of its own."""
    view = regard.load(OLD / "classify-longformer").look(TEXT)
    assert view.counts == {"encoder": 2} and len(view.maps) == 2
    for each in view.maps:
        assert torch.allclose(each.weights.sum(-1), torch.ones(1), atol=1e-5) and (each.weights[:, 0] > 0).all()
        assert (each.weights[:, 3:] == 0).any()  # a window


def test_rollout_is_for_encoders() -> None:
    view = regard.load(OLD / "classify-longformer").look(TEXT)
    first, second = ((each.weights.mean(0) + torch.eye(len(view.tokens))) / 2 for each in view.maps)
    assert np.allclose(view.rollout(), (second @ first).numpy(), atol=1e-6)
    assert torch.equal(rollout([view.maps[0].weights])[0], view.rollouts()[0][1])
    with pytest.raises(UserError, match="rollout needs all layers of the encoder; look without layer="):
        regard.load(OLD / "classify-longformer").look(TEXT, layer=2).rollout()
    with pytest.raises(UserError, match="rollout combines the layers of an encoder, and this view has none"):
        regard.load(OLD / "language-gpt").look(TEXT).rollout()


# --- bad input -------------------------------------------------------------------------------------------------------


def test_there_is_nothing_to_look_at() -> None:
    for name in ("classify-rnn", "language-rnn"):
        with pytest.raises(UserError, match="this model has no attention, so there is nothing to look at"):
            regard.load(OLD / name).look(TEXT)
    for name in ("classify-bert", "language-lm", "spans-t5"):
        with pytest.raises(UserError, match="the text is empty and has no attention to show; give a sentence"):
            regard.load(OLD / name).look(" ")


def test_a_text_may_be_too_long_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 tokens have 10 billion weights in every head: that is said before any is computed."""
    many = "cat " * 100_000
    with pytest.raises(
        UserError, match=r"the attention has 100,\d\d\d × 100,\d\d\d weights in each of 2 heads, too many"
    ):
        regard.load(OLD / "language-lm").look(many)
    monkeypatch.setattr(record, "MAX_WEIGHTS", 700)
    predictor = regard.load(OLD / "classify-longformer")
    with pytest.raises(UserError, match=r"give a part of about \d+ positions, or choose a layer \(layer=, --layer\)"):
        predictor.look(TEXT)
    view = regard.load(OLD / "spans-t5").look(TEXT, "a cat")  # the rest is shown without the encoder
    assert "encoder" not in view.kinds and "choose a layer to see them" in view.left_out["encoder"]
