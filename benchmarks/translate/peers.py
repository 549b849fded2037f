"""The programs we are timed beside, each with the weights of one of our models, at its best setting."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config.schema import Train
from regard.data.collate import PairBatch
from regard.families import transformer
from regard.formats import ctranslate2
from regard.formats.huggingface.marian_export import as_marian, config, max_positions, tensors
from regard.tasks.translate import TranslatePredictor

SMOOTHING = Train().smoothing


def installed(package: str, notes: list[str]) -> bool:
    """Is it there? A peer that is missing is a column less, and told."""
    if find_spec(package) is None:
        notes.append(f"{package} is not installed, so it was not timed; pip install {package} brings it in")
        return False
    return True


# --- Hugging Face Marian -------------------------------------------------------------------------------------------


def marian(system: TranslatePredictor) -> Any:
    import transformers as hf

    hf.utils.logging.set_verbosity_error()
    run = system.run
    twin, c = as_marian(system.model.cpu(), run.model)
    words = config(c, system.source, max_positions(run)) | {"attn_implementation": "sdpa"}  # type: ignore[arg-type]
    theirs: Any = hf.MarianMTModel(hf.MarianConfig(**words))
    theirs.load_state_dict(tensors(twin, c), strict=False)  # positions are computed, and a tied table comes once
    theirs.tie_weights()
    system.model.to(system.device)
    return theirs.to(system.device)


def marian_loss(model: Any, batch: PairBatch) -> Tensor:
    logits = model(
        input_ids=batch.source, attention_mask=batch.source_valid.long(), decoder_input_ids=batch.target_in,
        use_cache=False,
    ).logits  # fmt: skip
    return summed(logits, batch)


def summed(logits: Tensor, batch: PairBatch) -> Tensor:
    labels = batch.target_out.masked_fill(~batch.target_valid, -100)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=SMOOTHING, reduction="sum")


# --- torch.nn.Transformer ------------------------------------------------------------------------------------------


class TorchTransformer(nn.Module):
    """torch's own layers, wired as its documentation does, with a shared table that is also the projection."""

    places: Tensor

    def __init__(self, model: transformer.Model, c: transformer.Config) -> None:
        super().__init__()
        shape: dict[str, Any] = {"d_model": c.width, "nhead": c.heads, "dim_feedforward": c.inner}
        shape |= {"dropout": c.dropout, "batch_first": True}
        layer = nn.TransformerEncoderLayer(**shape), nn.TransformerDecoderLayer(**shape)
        self.inner = nn.Transformer(
            **shape,
            custom_encoder=nn.TransformerEncoder(layer[0], c.layers, enable_nested_tensor=False),
            custom_decoder=nn.TransformerDecoder(layer[1], c.decoder_layers or c.layers),
        )
        self.table, self.scale, self.dropout = nn.Embedding(c.vocab, c.width), model.scale, nn.Dropout(c.dropout)
        self.register_buffer("places", model.encoder.add_positions(model.source.weight.new_zeros(1, 512, c.width))[0])
        self.take(model)

    @torch.no_grad()
    def take(self, model: transformer.Model) -> None:
        self.table.weight.copy_(model.source.weight)
        for ours, theirs in ((model.encoder, self.inner.encoder), (model.decoder, self.inner.decoder)):
            for one, other in zip(ours.layers, theirs.layers, strict=True):
                attend(one.attention, other.self_attn)
                norms = [one.attention_residual.norm, one.feed_residual.norm]
                if one.cross is not None:
                    attend(one.cross, other.multihead_attn)
                    norms.insert(1, one.cross_residual.norm)
                for number, norm in enumerate(norms, 1):
                    getattr(other, f"norm{number}").load_state_dict(norm.state_dict())
                other.linear1.load_state_dict(one.feed.into.state_dict())
                other.linear2.load_state_dict(one.feed.out.state_dict())
                other.dropout.p = 0.0  # inside the feed-forward, where the others have none

    def embed(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.dropout(self.table(tokens) * self.scale + self.places[: tokens.size(1)])
        return x

    def forward(self, batch: PairBatch) -> Tensor:
        """Logits."""
        hidden, tokens = ~batch.source_valid, batch.target_in.size(1)
        later = nn.Transformer.generate_square_subsequent_mask(tokens, device=batch.source.device)
        states = self.inner(
            self.embed(batch.source),
            self.embed(batch.target_in),
            tgt_mask=later,
            tgt_is_causal=True,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
        )
        return states @ self.table.weight.t()


def attend(ours: Any, theirs: nn.MultiheadAttention) -> None:
    maps = ours.query, ours.key, ours.value
    theirs.in_proj_weight.copy_(torch.cat([each.weight for each in maps]))
    theirs.in_proj_bias.copy_(torch.cat([each.bias for each in maps]))
    theirs.out_proj.load_state_dict(ours.out.state_dict())
    theirs.dropout = 0.0  # of the weights, where the others have none


def torch_loss(model: nn.Module, batch: PairBatch) -> Tensor:
    return summed(model(batch), batch)


# --- CTranslate2 ---------------------------------------------------------------------------------------------------


def translator(system: TranslatePredictor, folder: Path, precision: str) -> Any:
    """The system as CTranslate2 runs it, with as many threads as torch has."""
    plain = TranslatePredictor(system.run, system.model.cpu(), system.source, system.target, torch.device("cpu"))
    if not folder.exists():
        ctranslate2.write(plain, folder, "fp32")
    system.model.to(system.device)
    return ctranslate2.import_ctranslate2().Translator(
        str(folder),
        device=system.device.type,
        device_index=system.device.index or 0,
        compute_type=ctranslate2.TYPES[precision],
        intra_threads=torch.get_num_threads(),
        inter_threads=1,
    )
