"""Compare our models with those of transformers, both given: every output, with padding and all that a batch may have."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from helpers import causal
from helpers.inputs import inputs
from prototypes.checks import close, ragged

from regard.parts import Mask

ROWS = [[5, 9, 31, 77, 3, 250, 12], [40, 41], [7, 7, 200, 18], [99]]


def change_config(path: Path, **config: Any) -> None:
    old = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(old | config))


def run_readme(folder: Path, image: Any, monkeypatch: Any, capsys: Any) -> str:
    """What the example in the README of a folder with a model of images prints."""
    code = (folder / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    image.save(folder / "image.png")
    monkeypatch.chdir(folder)
    capsys.readouterr()
    exec(compile(code, "README.md", "exec"), {})
    out: str = capsys.readouterr().out
    return out


@torch.no_grad()
def same_bert(model: Any, theirs: Any) -> None:
    """Compare every output of the class, with token types and without."""
    torch.manual_seed(3)
    vocab, types = model.embed.num_embeddings, model.kinds.num_embeddings
    first = theirs.config.pad_token_id + 1 if theirs.config.model_type == "roberta" else 0  # it numbers by this token
    ids, valid, token_types = (
        torch.randint(first, vocab, (3, 41)),
        ragged([41, 8, 1], 41),
        torch.randint(types, (3, 41)),
    )
    ids = ids.masked_fill(~valid, theirs.config.pad_token_id)
    for chosen in (token_types, None):
        outputs = theirs(ids, attention_mask=valid.long(), **({} if chosen is None else {"token_type_ids": chosen}))
        encoded = model.encode(inputs(ids, valid, token_types=chosen))
        compared = set()
        for name, wanted in outputs.items():
            compared.add(name)
            if name == "last_hidden_state":
                close(encoded.states[valid], wanted[valid])
            elif name == "pooler_output":
                close(model.pool(encoded), wanted)
            elif name == "prediction_logits" or (name == "logits" and model.head == "words"):
                close(model.logits(encoded.states)[valid], wanted[valid])
            elif name == "seq_relationship_logits" or (name == "logits" and model.head == "none"):
                close(model.next_sentence_logits(encoded), wanted)
            else:
                assert name == "logits"
                places = valid if model.head == "tag" else slice(None)
                close(model.label_logits(encoded)[places], wanted[places])
        assert compared


@torch.no_grad()
def same_longformer(model: Any, theirs: Any, tokens: int = 131) -> None:
    """Rows of several lengths, with the model's own global positions and with a different number of them per row."""
    torch.manual_seed(3)
    pad = theirs.config.pad_token_id
    ids = torch.randint(pad + 1, model.embed.num_embeddings, (3, tokens))
    valid = ragged([tokens, tokens - 60, 3], tokens)
    ids = ids.masked_fill(~valid, pad)
    marks = torch.tensor([[0, 50, tokens - 1], [9, 40, -1], [1, -1, -1]])
    attention = model.encoder.layers[0].attention
    leading = getattr(attention, "leading_globals", 0)
    for named in (None, marks) if hasattr(attention, "leading_globals") else (None,):
        own = torch.arange(leading).expand(3, leading) if named is None else named
        wide = Mask(global_positions=own).is_global(tokens).long() if own.size(1) else torch.zeros_like(ids)
        if named is None and leading == ("Sequence" in type(theirs).__name__):
            wide = None  # transformers' own choice
        outputs = theirs(ids, attention_mask=valid.long(), global_attention_mask=wide)
        encoded = model.encode(inputs(ids, valid, global_positions=named))
        if model.head == "none":
            close(encoded.states[valid], outputs.last_hidden_state[valid])
            close(model.pool(encoded), outputs.pooler_output)
        elif model.head == "words":
            close(model.logits(encoded.states)[valid], outputs.logits[valid])
        else:
            chosen = valid if model.head == "tag" else slice(None)
            close(model.label_logits(encoded)[chosen], outputs.logits[chosen])


@torch.no_grad()
def same_bigbird(model: Any, fresh: Callable[[], Any]) -> None:
    """Compare each text of a padded batch with theirs alone: theirs uses the batch's last block for every row.
    `fresh` builds their model, which switches to full attention for good once it has read a short text."""
    torch.manual_seed(3)
    lengths = [101, 36, 37, 98, 5]
    ids, types = torch.randint(4, 120, (len(lengths), 101)), torch.randint(2, (len(lengths), 101))
    for token_types in (types, None):
        encoded = model.encode(inputs(ids, ragged(lengths), token_types=token_types))
        for row, length in enumerate(lengths):
            alone = slice(row, row + 1), slice(length)
            extra = {} if token_types is None else {"token_type_ids": token_types[alone]}
            outputs, own = fresh()(ids[alone], **extra), replace(encoded, states=encoded.states[alone])
            if model.head == "none":
                close(own.states, outputs.last_hidden_state)
                close(model.pool(own), outputs.pooler_output)
            elif model.head == "words":
                close(model.logits(own.states), outputs["prediction_logits" if model.next is not None else "logits"])
                if model.next is not None:
                    assert (model.next_sentence_logits(own) - outputs.seq_relationship_logits).abs().max() < 1e-4
            else:
                close(model.label_logits(own), outputs.logits)


def same_causal(ours: Any, theirs: Any, rows: list[list[int]] = ROWS, exact: float = 1e-4) -> None:
    """Equal logits on every valid token, for padding on either side, and equal greedy texts of a ragged batch."""
    tokens, real = causal.ragged(rows)
    with torch.no_grad():
        wanted = theirs(tokens, attention_mask=real.long()).logits
        found = ours(inputs(tokens, real))
        assert (found - wanted)[real].abs().max() <= exact
        assert wanted[real].std() > 0.3
        assert (ours.step(tokens, ours.start(None, len(rows), 30), real) - wanted)[real].abs().max() <= exact
        one = torch.tensor(rows[:1])
        loss = torch.nn.functional.cross_entropy(ours(inputs(one))[0, :-1], one[0, 1:])
        assert abs(theirs(one, labels=one).loss.item() - loss.item()) < 1e-5 * max(1.0, loss.item())
    theirs.generation_config = hf.GenerationConfig()  # an exported one never generates some control tokens
    said = causal.generated(theirs, rows, 12, end=1)
    assert causal.greedy(ours, rows, 12, end=1) == causal.greedy(ours, rows, 12, end=1, left=True) == said
    assert len({token for row in said for token in row}) > 8


@torch.no_grad()
def same_seq2seq(model: Any, theirs: Any) -> None:
    """Equal logits for padded sources of different lengths, read at once and token by token."""
    torch.manual_seed(3)
    vocab = min(model.source.num_embeddings, model.head.out_features) - 4
    source, target, valid = torch.randint(4, vocab, (3, 21)), torch.randint(4, vocab, (3, 13)), ragged([21, 12, 3])
    wanted = theirs(input_ids=source, attention_mask=valid.long(), decoder_input_ids=target).logits
    close(model(inputs(source, valid), inputs(target)), wanted)
    cache = model.start(inputs(source, valid), 3, 13)
    close(torch.cat([model.step(target[:, i : i + 1], cache) for i in range(13)], 1), wanted)
