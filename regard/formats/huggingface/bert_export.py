"""A run as a Hugging Face BERT folder: `transformers` and our own reader give the same numbers for the same tokens.

Which class it becomes is the head's affair. The tokenizer goes along as tokenizer.json, with START and END, which are
BERT's [CLS] and [SEP], around every text.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from tokenizers import processors
from torch import Tensor

from ...families import bert
from ...files import write_json
from ...parts import Mask, slots
from ...processors.tokenizers import END, MASK, PAD, SPECIALS, START, UNK, TrainedTokenizer
from ..parity import SAMPLE_COUNT, check_close, export_error, quiet
from .marian_export import portable_tokenizer
from .weight_names import export_weights


def unsupported(c: bert.Config) -> list[str]:
    """What of a model transformers' BERT cannot be, in words; nothing where it fits."""
    found = {
        "model.prenorm=true (BERT's norms come last)": c.prenorm,
        f"model.positions.kind={c.positions.kind} (expected learned)": not isinstance(c.positions, slots.Learned),
        f"model.attention.kind={c.attention.kind} (expected dense)": not isinstance(c.attention, slots.Dense),
        "model.attention.scaled=false (BERT's scores are)": not getattr(c.attention, "scaled", True),
        f"model.feed.kind={c.feed.kind} (expected plain)": not isinstance(c.feed, slots.Feed),
        f"model.norm.kind={c.norm.kind} (expected layer)": not isinstance(c.norm, slots.LayerNorm),
    }
    return [words for words, misfit in found.items() if misfit]


def write(system: Any, draft: Path, precision: str) -> None:
    """Everything of the folder but its README."""
    c: bert.Config = system.run.model
    draft.mkdir()
    write_json(draft / "config.json", config(c, system.tokenizer, labels(system)))
    (draft / "model.safetensors").write_bytes(save(tensors(system.model, c), {"format": "pt"}))
    backend = portable_tokenizer(system.tokenizer)
    backend.post_processor = around(system.tokenizer)
    (draft / "tokenizer.json").write_text(backend.to_str(pretty=True) + "\n", encoding="utf-8")
    write_json(draft / "tokenizer_config.json", use_of_tokenizer(c, system.tokenizer))


def labels(system: Any) -> Sequence[str]:
    return list(system.labels) if system.run.model.head in ("class", "tag") else ()


def architecture(c: bert.EncoderConfig) -> str:
    if c.next_sentence and c.head in ("none", "words"):
        return "BertForPreTraining" if c.head == "words" else "BertForNextSentencePrediction"
    return {
        "none": "BertModel",
        "words": "BertForMaskedLM",
        "class": "BertForSequenceClassification",
        "tag": "BertForTokenClassification",
    }[c.head]


def tag(c: bert.EncoderConfig) -> str:
    tags = {"words": "fill-mask", "class": "text-classification", "tag": "token-classification"}
    return tags.get(c.head, "feature-extraction")


def config(c: bert.EncoderConfig, tokenizer: TrainedTokenizer, names: Sequence[str]) -> dict[str, Any]:
    assert isinstance(c.positions, slots.Learned)
    acts = {ours: theirs for theirs, ours in reversed(bert.ACTS.items())}
    known = {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {n: i for i, n in enumerate(names)},
    }
    return {
        "architectures": [architecture(c)],
        "model_type": "bert",
        "vocab_size": c.vocab,
        "type_vocab_size": c.token_types,
        "hidden_size": c.width,
        "num_attention_heads": c.heads,
        "num_hidden_layers": c.layers,
        "intermediate_size": c.inner,
        "hidden_act": acts[c.feed.act],
        "hidden_dropout_prob": c.dropout,
        "attention_probs_dropout_prob": getattr(c.attention, "dropout", 0.0),
        "max_position_embeddings": c.positions.tokens,
        "layer_norm_eps": c.norm.eps,
        "tie_word_embeddings": c.tied,
        "pad_token_id": tokenizer.pad,
        "dtype": "float32",
        **(known if names else {}),
    }


def tensors(model: bert.Model, c: bert.Config) -> dict[str, Tensor]:
    """The weights under the names that `save_pretrained` would write, without what the class does not have."""
    found, kind = export_weights(model, bert.names(c)), architecture(c)
    if c.tied:
        found.pop("cls.predictions.decoder.weight", None)
    if kind in ("BertForMaskedLM", "BertForTokenClassification"):
        found = {name: tensor for name, tensor in found.items() if not name.startswith("pooler.")}
    if "Classification" in kind:
        found = {name: tensor for name, tensor in found.items() if not name.startswith("cls.")}
    heads = ("cls.", "classifier.")
    inner = "" if kind == "BertModel" else "bert."
    return {
        name if name.startswith(heads) else inner + name: tensor.detach().clone().contiguous()
        for name, tensor in found.items()
    }


def around(text: TrainedTokenizer) -> Any:
    start, end = SPECIALS[START], SPECIALS[END]
    return processors.TemplateProcessing(
        single=f"{start}:0 $A:0 {end}:0",
        pair=f"{start}:0 $A:0 {end}:0 $B:1 {end}:1",
        special_tokens=[(start, text.start), (end, text.end)],
    )


def use_of_tokenizer(c: bert.EncoderConfig, text: TrainedTokenizer) -> dict[str, Any]:
    """No text is control, whatever it says; only where masked words are guessed can a text say `<mask>` there."""
    assert isinstance(c.positions, slots.Learned)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": SPECIALS[PAD],
        "unk_token": SPECIALS[UNK],
        "cls_token": SPECIALS[START],
        "sep_token": SPECIALS[END],
        **({} if text.mask is None else {"mask_token": MASK}),
        "split_special_tokens": text.mask is None or c.head != "words",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "model_max_length": c.positions.tokens,
    }


# --- the export checks itself ----------------------------------------------------------------------------------------


def check(system: Any, draft: Path, precision: str) -> str:
    """The folder by our own reader, and by transformers where it is installed; what was found, in words."""
    from ...files import read_json
    from .bert import read

    sample, folder = EncoderSample(system), read(draft, read_json(draft / "config.json"))
    sample.compare_tokens("the folder", folder.tokenizer.encode(sample.texts))
    apart = sample.compare("the folder", sample.outputs(folder.model))
    who = ["regard"]
    if find_spec("transformers") is not None:
        import transformers as hf

        with quiet(hf):
            apart = max(apart, sample.compare("transformers", theirs(sample, draft, hf)))
        who.append(f"transformers {hf.__version__}")
    return f"{len(sample.texts)} texts with {' and '.join(who)}: tokens equal, outputs apart by {apart:.1g}"


class EncoderSample:
    """What the run itself makes of a few made texts, by all that its head can say."""

    def __init__(self, system: Any) -> None:
        text: TrainedTokenizer = system.tokenizer
        self.system, self.head = system, architecture(system.run.model)
        most = min(9, (system.model.context or 11) - 2)
        draw = torch.Generator().manual_seed(1)
        rows = [torch.randint(text.size, (1 + i % most,), generator=draw).tolist() for i in range(SAMPLE_COUNT)]
        self.texts = text.decode(rows)
        self.ids = [ids[:most] for ids in text.encode(self.texts)]
        longest = max(map(len, self.ids)) + 2
        padded = [[text.start, *ids, text.end] + [text.pad] * (longest - 2 - len(ids)) for ids in self.ids]
        self.tokens = torch.tensor(padded)
        self.real = torch.arange(longest) < torch.tensor([[len(ids) + 2] for ids in self.ids])
        self.wanted = self.outputs(system.model)

    @torch.no_grad()
    def outputs(self, model: bert.Model) -> list[Tensor]:
        states = model.encode(self.tokens, Mask(key_valid=self.real))
        if self.head == "BertModel":
            return [states[self.real]]
        if self.head == "BertForSequenceClassification":
            return [model.label_logits(states)]
        if self.head == "BertForTokenClassification":
            return [model.label_logits(states)[self.real]]
        words = [] if self.head == "BertForNextSentencePrediction" else [model.logits(states)[self.real]]
        return words + ([] if self.head == "BertForMaskedLM" else [model.next_sentence_logits(states)])

    def compare(self, who: str, found: list[Tensor]) -> float:
        return max(
            check_close(who, (one - other).abs().max().item()) for one, other in zip(found, self.wanted, strict=True)
        )

    def compare_tokens(self, who: str, found: list[list[int]]) -> None:
        for text, one, other in zip(self.texts, found, self.system.tokenizer.encode(self.texts), strict=True):
            if one != other:
                raise export_error(f"{who} gives other tokens for {text!r}: {one} and not {other}")


@torch.no_grad()
def theirs(sample: EncoderSample, draft: Path, hf: Any, name: str = "", **words: Any) -> list[Tensor]:
    """What transformers' class of that name makes of them, with these further arguments."""
    model, text = (
        getattr(hf, name or sample.head).from_pretrained(draft).eval(),
        hf.AutoTokenizer.from_pretrained(draft),
    )
    found = text(sample.texts, split_special_tokens=True).input_ids
    own: TrainedTokenizer = sample.system.tokenizer
    if any(row[0] != own.start or row[-1] != own.end for row in found):
        raise export_error("transformers does not put START and END around a text")
    sample.compare_tokens("transformers", [row[1:-1] for row in found])
    made = model(sample.tokens, attention_mask=sample.real.long(), **words)
    parts = [made[name] for name in ("last_hidden_state", "prediction_logits", "logits", "seq_relationship_logits")
             if name in made]  # fmt: skip
    return [part[sample.real] if part.dim() == 3 else part for part in parts]
