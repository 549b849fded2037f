"""Training speed beside Hugging Face Marian: the same weights, the same padded batches, the same Adam."""

import argparse
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..data.batches import pair
from ..data.tokenizers import END, PAD, START
from ..families import transformer
from ..interop.weights import load
from ..parts import Cross, Mask
from ..parts.losses import smoothed
from .timing import ratio, rounds

VOCAB = 32000


class Ids:
    """The few numbers of a tokenizer that batches need."""

    pad, start, end = PAD, START, END


def marian(size: str) -> Any:
    """HF's model of this size, at its best setting."""
    import transformers as hf

    c = transformer.SIZES[size]
    config = hf.MarianConfig(
        vocab_size=VOCAB, d_model=c["width"], encoder_layers=c["layers"], decoder_layers=c["layers"],
        encoder_attention_heads=c["heads"], decoder_attention_heads=c["heads"], encoder_ffn_dim=c["inner"],
        decoder_ffn_dim=c["inner"], activation_function="relu", scale_embedding=True, pad_token_id=PAD,
        eos_token_id=END, decoder_start_token_id=START, forced_eos_token_id=END, dropout=0.1, attention_dropout=0.0,
        max_position_embeddings=512,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    return hf.MarianMTModel(config)


def batches(count: int, sentences: int, seed: int) -> list[Any]:
    """Padded batches of sentences with WMT-like lengths (log-normal, 4 to 120, mean about 29), sorted by length."""
    draw = torch.Generator().manual_seed(seed)
    lengths = (
        torch.randn(count * sentences, generator=draw)
        .mul(0.6)
        .add(3.2)
        .exp()
        .round()
        .clamp(4, 120)
        .long()
        .sort()
        .values
    )
    made = []
    for some in lengths.split(sentences):
        ids = [[torch.randint(4, VOCAB, (int(n),), generator=draw).tolist() for n in some] for _ in range(2)]
        made.append(pair(ids[0], ids[1], Ids, Ids))  # type: ignore[arg-type]
    return made


def our_loss(model: Any, batch: Any) -> torch.Tensor:
    mask = Mask(keys=batch.source_real)
    states = model.decode(batch.target_in, Cross(model.encode(batch.source, mask), mask))
    real = batch.target_real
    return smoothed(model.logits(states[real]), batch.target_out[real], smoothing=0.1) / real.sum()


def their_loss(model: Any, batch: Any) -> torch.Tensor:
    logits = model(
        input_ids=batch.source, attention_mask=batch.source_real.long(), decoder_input_ids=batch.target_in
    ).logits
    labels = batch.target_out.masked_fill(~batch.target_real, -100)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)


def trained(model: nn.Module, loss: Any, data: list[Any]) -> Any:
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-5, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def go() -> None:
        model.train()
        for batch in data:
            loss(model, batch).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad()

    return go


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--size", default="base", choices=list(transformer.SIZES))
    parse.add_argument("--sentences", type=int, default=16)
    parse.add_argument("--batches", type=int, default=4)
    parse.add_argument("--rounds", type=int, default=5)
    asked = parse.parse_args()
    torch.manual_seed(0)
    theirs = marian(asked.size)
    config = transformer.from_marian(theirs.config.to_dict())
    ours = load(transformer.Model(config), theirs.state_dict(), transformer.marian(config), transformer.MARIAN_COMPUTED)
    data = batches(asked.batches, asked.sentences, seed=1)
    with torch.no_grad():
        apart = max(abs(our_loss(ours, b).item() - their_loss(theirs.eval(), b).item()) for b in data)
    print(f"losses before training are apart by {apart:.1e}")
    if apart > 1e-4:
        raise SystemExit("the two models are not the same; nothing was timed")
    real = sum(int(b.source_real.sum() + b.target_real.sum()) for b in data)
    whole = sum(b.source.numel() + b.target_in.numel() for b in data)
    print(f"{torch.get_num_threads()} threads, {real:,} real tokens a round, {1 - real / whole:.1%} padding")
    began = time.perf_counter()
    seconds = rounds(
        {"regard": trained(ours, our_loss, data), "HF Marian": trained(theirs, their_loss, data)}, asked.rounds
    )
    for name, each in seconds.items():
        print(f"{name:10s} {real / sorted(each)[len(each) // 2]:8,.0f} real tokens/s")
    middle, low, high = ratio(seconds["regard"], seconds["HF Marian"])
    print(f"ratio {middle:.2f} (single rounds {low:.2f} to {high:.2f}), {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
