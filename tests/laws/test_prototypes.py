"""Interfaces of the parts under awkward families: parity with transformers, packing, memory, compilation."""

from functools import partial

import pytest
import torch
import torch.utils.checkpoint
import transformers as hf
from helpers.inputs import inputs
from prototypes import bert
from prototypes.checks import close, loud, ragged, stepped
from torch import Tensor, nn

from regard.formats.huggingface.weight_names import load_weights
from regard.parts import Inputs, Mask, slots

# --- Parity with transformers: the same weights give the same numbers ------------------------------------------------


def test_bert_equals_transformers() -> None:
    config = hf.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=40,
    )  # fmt: skip
    theirs = loud(hf.BertModel(config))
    ours = load_weights(bert.BERT(bert.Config()), theirs.state_dict(), bert.NAMES)
    ids, valid, kinds = torch.randint(50, (2, 13)), ragged([13, 8]), torch.randint(2, (2, 13))
    want = theirs(ids, attention_mask=valid.long(), token_type_ids=kinds)
    x = ours.encode(ids, Mask(key_valid=valid), kinds)
    close(x[valid], want.last_hidden_state[valid])
    close(ours.pooled(x), want.pooler_output)


def longformers() -> tuple[nn.Module, nn.Module]:
    config = hf.LongformerConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=80, attention_window=8, type_vocab_size=1, pad_token_id=1,
    )  # fmt: skip
    theirs = loud(hf.LongformerModel(config))
    ours = bert.BERT(bert.Config(tokens=78, token_types=1, skip=2, attention=slots.Window(radius=4, globals=1)))
    return load_weights(ours, theirs.state_dict(), bert.LONGFORMER), theirs


@pytest.mark.parametrize("index", [[[0], [0]], [[0, 9, 30], [5, -1, -1]], [[3, 0, 7], [0, -1, -1]]])
def test_longformer_equals_transformers(index: list[list[int]]) -> None:
    """37 tokens are no multiple of any block; padding; rows with different numbers of global positions."""
    ours, theirs = longformers()
    valid = ragged([37, 22])
    ids = torch.randint(2, 50, (2, 37)).masked_fill(~valid, 1)
    marks = Mask(global_positions=torch.tensor(index)).is_global(37).long()
    want = theirs(ids, attention_mask=valid.long(), global_attention_mask=marks).last_hidden_state
    close(ours.encode(ids, Mask(key_valid=valid, global_positions=torch.tensor(index)))[valid], want[valid])
    if index == [[0], [0]]:  # what the slot says by itself
        close(ours.encode(ids, Mask(key_valid=valid))[valid], want[valid])


def test_packed_longformer_equals_separate() -> None:
    """Each text has its own global first token, which is global only within that text."""
    ours, _ = longformers()
    a, b = torch.randint(2, 50, (1, 21)), torch.randint(2, 50, (1, 15))
    places = packed(a, b).mask().replace(global_positions=torch.tensor([[0, 21]]))
    close(ours.encode(torch.cat([a, b], 1), places), torch.cat([ours.encode(a), ours.encode(b)], 1))


# --- Packing ---------------------------------------------------------------------------------------------------------


def packed(*texts: Tensor) -> Inputs:
    """Texts of one row each in one row."""
    lengths = [text.size(1) for text in texts]
    at = torch.cat([torch.arange(length) for length in lengths])[None]
    segments = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None]
    return inputs(torch.cat(texts, 1), positions=at, segments=segments)


@pytest.mark.parametrize("name", ["dense", "additive", "sinusoid", "rotary", "buckets", "window", "xl"])
def test_packed_equals_separate(name: str) -> None:
    model, a, b = stepped(name).model, torch.randint(50, (1, 9)), torch.randint(50, (1, 6))
    close(model(packed(a, b)), torch.cat([model(inputs(a)), model(inputs(b))], 1))


def test_packed_source_and_target_equal_separate() -> None:
    model = stepped("t5").model
    a, b, c, d = (torch.randint(50, (1, tokens)) for tokens in (9, 6, 5, 4))
    separate = [model(inputs(source), inputs(target)) for source, target in ((a, c), (b, d))]
    close(model(packed(a, b), packed(c, d)), torch.cat(separate, 1))


# --- Compiled whole, and checkpointed --------------------------------------------------------------------------------


def test_training_compiles_to_one_graph() -> None:
    ids, valid = torch.randint(50, (2, 9)), ragged([9, 5])
    whole, model = partial(torch.compile, fullgraph=True), stepped("t5").model
    loss = whole(lambda: model(inputs(ids, valid), inputs(ids)).square().mean(), backend="aot_eager")()
    close(loss, model(inputs(ids, valid), inputs(ids)).square().mean())
    loss.backward()
    ours, _ = longformers()
    close(whole(ours.encode, backend="eager")(ids, Mask(key_valid=valid)), ours.encode(ids, Mask(key_valid=valid)))
    words = packed(torch.randint(50, (1, 9)), torch.randint(50, (1, 6)))
    for name in ("window", "xl"):
        model = stepped(name).model
        close(whole(model, backend="eager")(words), model(words))


@pytest.mark.parametrize("name", ["t5", "window", "favor", "xl"])
def test_checkpointed_gradients_equal_plain(name: str) -> None:
    """Layers recomputed in the backward pass must work with masks that are built once per stack."""
    model, ids = stepped(name).model, torch.randint(50, (2, 9))
    text = inputs(ids, ragged([9, 5]))
    grads = []
    for again in (False, True):
        if again:
            for layer in [part for part in model.modules() if hasattr(part, "attention_residual")]:
                layer.forward = partial(torch.utils.checkpoint.checkpoint, layer.forward, use_reentrant=False)
        model.zero_grad()
        (model(text, inputs(ids)) if name == "t5" else model(text)).square().mean().backward()
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    close(*grads, 1e-6)
