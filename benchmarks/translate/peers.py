"""The other programs, each with the weights of one of our models and its best settings."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config.losses import SmoothedLoss
from regard.data.batch import Batch
from regard.families import transformer
from regard.formats import ctranslate2
from regard.formats.huggingface.generation import max_positions, seq2seq_ids
from regard.formats.huggingface.marian import FORMAT
from regard.tasks.translate.task import TranslatePredictor

SMOOTHING = SmoothedLoss().smoothing


def installed(package: str, notes: list[str]) -> bool:
    """True if the package is installed; otherwise a note says that it is left out."""
    if find_spec(package) is None:
        notes.append(f"{package} is not installed, so it was not timed; run pip install {package}")
        return False
    return True


# --- Hugging Face Marian -------------------------------------------------------------------------------------------


def marian(predictor: TranslatePredictor) -> Any:
    import transformers as hf

    hf.utils.logging.set_verbosity_error()
    run = predictor.run
    settings = FORMAT.config(run.model) | seq2seq_ids(predictor.source) | {"attn_implementation": "sdpa"}
    settings |= {"max_position_embeddings": max_positions(run), "forced_eos_token_id": None}
    theirs: Any = hf.MarianMTModel(hf.MarianConfig(**settings))
    predictor.model.cpu()
    theirs.load_state_dict(FORMAT.tensors(predictor), strict=False)  # positions are computed, a tied table stored once
    theirs.tie_weights()
    predictor.model.to(predictor.device)
    return theirs.to(predictor.device)


def marian_loss(model: Any, batch: Batch) -> Tensor:
    logits = model(
        input_ids=batch["source"].values, attention_mask=batch["source"].valid.long(),
        decoder_input_ids=batch["target"].values, use_cache=False,
    ).logits  # fmt: skip
    return summed_loss(logits, batch)


def summed_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Over all positions, as the peers do: padding has the label -100."""
    labels = torch.full(logits.shape[:2], -100, device=logits.device).flatten()
    labels[batch["labels"].positions] = batch["labels"].values
    return F.cross_entropy(logits.flatten(0, 1), labels, label_smoothing=SMOOTHING, reduction="sum")


# --- torch.nn.Transformer ------------------------------------------------------------------------------------------


class TorchTransformer(nn.Module):
    """The layers of torch.nn, wired as in its documentation, with a shared embedding and output table."""

    positions_table: Tensor

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
        self.register_buffer(
            "positions_table", model.encoder.add_positions(model.source.weight.new_zeros(1, 512, c.width))[0]
        )
        self.copy_weights(model)

    @torch.no_grad()
    def copy_weights(self, model: transformer.Model) -> None:
        self.table.weight.copy_(model.source.weight)
        for ours, theirs in ((model.encoder, self.inner.encoder), (model.decoder, self.inner.decoder)):
            for one, other in zip(ours.layers, theirs.layers, strict=True):
                copy_attention(one.attention, other.self_attn)
                norms = [one.attention_residual.norm, one.feed_residual.norm]
                if one.cross is not None:
                    copy_attention(one.cross, other.multihead_attn)
                    norms.insert(1, one.cross_residual.norm)
                for number, norm in enumerate(norms, 1):
                    getattr(other, f"norm{number}").load_state_dict(norm.state_dict())
                other.linear1.load_state_dict(one.feed.into.state_dict())
                other.linear2.load_state_dict(one.feed.out.state_dict())
                other.dropout.p = 0.0  # the others have no dropout inside the feed-forward

    def embed(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.dropout(self.table(tokens) * self.scale + self.positions_table[: tokens.size(1)])
        return x

    def forward(self, batch: Batch) -> Tensor:
        """Return the logits."""
        source, target = batch["source"], batch["target"].values
        assert source.valid is not None
        padding, tokens = ~source.valid, target.size(1)
        causal = nn.Transformer.generate_square_subsequent_mask(tokens, device=target.device)
        states = self.inner(
            self.embed(source.values),
            self.embed(target),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return states @ self.table.weight.t()


def copy_attention(ours: Any, theirs: nn.MultiheadAttention) -> None:
    maps = ours.query, ours.key, ours.value
    theirs.in_proj_weight.copy_(torch.cat([each.weight for each in maps]))
    theirs.in_proj_bias.copy_(torch.cat([each.bias for each in maps]))
    theirs.out_proj.load_state_dict(ours.out.state_dict())
    theirs.dropout = 0.0  # the others have no dropout of attention weights


def torch_loss(model: nn.Module, batch: Batch) -> Tensor:
    return summed_loss(model(batch), batch)


# --- CTranslate2 ---------------------------------------------------------------------------------------------------


def translator(predictor: TranslatePredictor, folder: Path, precision: str) -> Any:
    """The model in CTranslate2, with as many threads as torch."""
    plain = TranslatePredictor(
        predictor.run, predictor.model.cpu(), predictor.source, predictor.target, torch.device("cpu")
    )
    if not folder.exists():
        ctranslate2.write(plain, folder, "fp32")
    predictor.model.to(predictor.device)
    return ctranslate2.import_ctranslate2().Translator(
        str(folder),
        device=predictor.device.type,
        device_index=predictor.device.index or 0,
        compute_type=ctranslate2.TYPES[precision],
        intra_threads=torch.get_num_threads(),
        inter_threads=1,
    )
