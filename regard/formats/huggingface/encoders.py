"""Parts shared by folders of BERT and its relatives: rows of config.json, processors, and how an export is compared.

The head decides which class it becomes. The tokenizer is written as tokenizer.json and puts START and END, which are
BERT's [CLS] and [SEP], around every text.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

import torch
from tokenizers import processors
from torch import Tensor, nn

from ...errors import UserError
from ...families import bert
from ...files import JsonMapping, JsonObject
from ...parts import Inputs, slots
from ...parts.pooling import Pooling
from ...processors.text.tokenizers import END, MASK, PAD, SPECIALS, START, UNK, TrainedTokenizer
from ..parity import SAMPLE_COUNT, compare_tokens, export_error
from .config_table import (
    ACTIVATIONS,
    Field,
    Fixed,
    Joint,
    Limit,
    Row,
    choice,
    present,
    read_class,
    require_class,
)
from .control_ids import check_control_ids, check_vocabulary
from .format import ExportSource, Folder, Tensors
from .labels import PROBLEM_TYPE, label_names, problem_type
from .sentence_transformers import apply_sentence_settings, read_modules
from .tokenizer_export import portable_tokenizer, write_tokenizer_json
from .weight_names import Names, WeightRule, add_prefixes, any_of

if TYPE_CHECKING:
    from ...tasks.predictor import AnyPredictor

LABELED = ("class", "tag")  # heads with labels
TASKS = {"none": "masked", "words": "masked", "class": "classify", "tag": "tag"}  # by head: the task of the predictor
TAGS = {"words": "fill-mask", "class": "text-classification", "tag": "token-classification"}

# --- config.json -----------------------------------------------------------------------------------------------------


def encoder_rows(
    architectures: Mapping[str, str], activation: str = "gelu", next_sentence: Mapping[str, str] | None = None
) -> tuple[Row, ...]:
    """The rows that encoders share. `activation` is their default for `hidden_act`; `architectures` gives our head by
    their class, `next_sentence` the classes with a further head for the next sentence by our head."""

    def architecture(c: bert.EncoderConfig) -> JsonObject:
        pretraining = next_sentence if c.next_sentence and next_sentence else {}
        by_head = {head: name for name, head in reversed([*architectures.items()])} | dict(pretraining)
        return {"architectures": [by_head[c.head]]}

    return (
        Joint(lambda theirs: {"head": read_class(theirs, architectures)}, architecture),
        PROBLEM_TYPE,
        Field("vocab", "vocab_size"),
        Field("token_types", "type_vocab_size", 2),
        Field("width", "hidden_size"),
        Field("heads", "num_attention_heads"),
        Field("layers", "num_hidden_layers"),
        Field("inner", "intermediate_size"),
        Field("dropout", "hidden_dropout_prob", 0.1),
        Field("tied", "tie_word_embeddings", True),
        Fixed("prenorm", False, "expected false: the norm comes last"),
        Fixed("pooling", "first", "expected first"),
        Fixed("positions.kind", "learned", "expected learned"),
        Fixed("feed.kind", "plain", "expected plain"),
        Field("feed.act", "hidden_act", activation, **choice("hidden_act", ACTIVATIONS)),
        Fixed("feed.dropout", 0.0),
        Fixed("norm.kind", "layer", "expected layer"),
        Field("norm.eps", "layer_norm_eps", 1e-12),
    )  # fmt: skip


def head_settings(
    architectures: Collection[str], pooler: str = "pooler.dense"
) -> Callable[[JsonMapping, JsonMapping, Collection[str]], JsonObject]:
    """The settings that config.json lacks: the number of labels, and the heads among the tensors."""

    def complete(settings: JsonMapping, theirs: JsonMapping, tensors: Collection[str]) -> JsonObject:
        require_class(theirs, tensors, architectures, HEADS)
        head = settings["head"]
        return {
            "labels": len(label_names(theirs)) if head in LABELED else 0,
            "pooled": f"{pooler}.weight" in tensors,
            "next_sentence": "cls.seq_relationship.weight" in tensors and head not in LABELED,
        }

    return complete


# --- weights ---------------------------------------------------------------------------------------------------------

HEADS = ("lm_head.", "classifier.", "cls.")  # tensors without the prefix of the body


def names(c: bert.EncoderConfig) -> dict[str, str | WeightRule]:
    """The names of BERT's layers, embeddings and first-token map without `bert.`, and of its label head."""
    layer: dict[str, str | WeightRule] = {
        "attention.query": "attention.self.query",
        "attention.key": "attention.self.key",
        "attention.value": "attention.self.value",
        "attention.out": "attention.output.dense",
        "attention_residual.norm": "attention.output.LayerNorm",
        "feed.into": "intermediate.dense",
        "feed.out": "output.dense",
        "feed_residual.norm": "output.LayerNorm",
    }
    return add_prefixes("encoder.layers.*", "encoder.layer.*", layer) | {
        "embed.weight": "embeddings.word_embeddings.weight",
        "kinds": "embeddings.token_type_embeddings",
        "encoder.positions.table": "embeddings.position_embeddings",
        "norm": "embeddings.LayerNorm",
        "pooler": "pooler.dense",
        "classes": "classifier",
    }


def word_head(c: bert.EncoderConfig, into: str, norm: str, decoder: str, bias: str) -> Names:
    """The names of the head for masked words; a tied one may repeat the table and the bias."""
    table = ["embeddings.word_embeddings.weight"] if c.tied else []
    return {
        "words.into": into,
        "words.norm": norm,
        "words.out.weight": any_of(f"{decoder}.weight", *table),
        "words.out.bias": any_of(*([bias] if c.tied else []), f"{decoder}.bias"),
    }


def absent_heads(heads: Mapping[str, bool]) -> tuple[str, ...]:
    """Patterns of tensors that transformers ignores too: position numbers, and heads that this model does not have."""
    return (r"embeddings\.position_ids", *(rf"{name}\..*" for name, has_head in heads.items() if not has_head))


def write_body(tensors: Tensors, c: bert.EncoderConfig, prefix: str, decoder: str) -> Tensors:
    """The tensors with the prefix of the body, which bare models lack, and without a tied decoder's matrix."""
    prefix = "" if c.head == "none" and not c.next_sentence else prefix
    return {
        name if name.startswith(HEADS) else prefix + name: tensor
        for name, tensor in tensors.items()
        if not (c.tied and name == f"{decoder}.weight")
    }


# --- RoBERTa and its relatives: heads and positions ------------------------------------------------------------------


def roberta_names(c: bert.EncoderConfig) -> Names:
    """Our names to theirs without the prefix of the body. The head class has its own map of the first token."""
    words = word_head(c, "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias")
    return {**names(c), **words, **(CLASS_HEAD if c.head == "class" else {})}


def roberta_unused(c: bert.EncoderConfig) -> tuple[str, ...]:
    """Patterns of tensors that transformers ignores too."""
    spare = [] if c.tied else [r"lm_head\.bias"]  # an untied decoder has its own
    spare += [r"pooler\..*"] if c.head == "class" else []
    return (*absent_heads({"lm_head": c.head == "words", "classifier": bool(c.labels)}), *spare)


def _read_gelu(theirs: JsonMapping) -> JsonObject:
    masked = str((theirs.get("architectures") or [""])[0]).endswith("ForMaskedLM")
    if masked and (act := present(theirs, "hidden_act", "gelu")) != "gelu":
        raise ValueError(f"hidden_act is {act!r}; expected 'gelu', which the head always has")
    return {}


def _refuse_activation(c: bert.EncoderConfig) -> str | None:
    refused = c.head == "words" and c.feed.act != "gelu"
    return f"model.feed.act={c.feed.act} (expected gelu with model.head=words)" if refused else None


GELU_HEAD = Joint(_read_gelu, lambda c: {}), Limit(_refuse_activation)  # the head for masked words always has gelu
CLASS_HEAD = {"pooler": "classifier.dense", "classes": "classifier.out_proj"}
TABLE = "embeddings.position_embeddings.weight"


def first_position(theirs: JsonMapping) -> int:
    """RoBERTa and its relatives number positions from behind the padding's number: the rows before are unused."""
    return int(theirs.get("pad_token_id", 1)) + 1


POSITIONS_BEHIND_PAD = Joint(
    lambda theirs: {"positions.tokens": theirs["max_position_embeddings"] - first_position(theirs)},
    lambda c: {"max_position_embeddings": c.positions.tokens + 2, "pad_token_id": 1},
)


def read_body(prefix: str) -> Callable[[Tensors, JsonMapping], Tensors]:
    """A reader of tensors: without the prefix of the body, and with positions that begin with the first token."""

    def read(tensors: Tensors, theirs: JsonMapping) -> Tensors:
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
        if TABLE in tensors:
            tensors[TABLE] = tensors[TABLE][first_position(theirs) :]
        return tensors

    return read


# --- the folder ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EncoderFolder(Folder):
    """The contents of an encoder's folder. A text is encoded between `tokenizer.start` and `tokenizer.end`."""

    tokenizer: TrainedTokenizer
    labels: tuple[str, ...]  # of the heads class and tag
    max_tokens: int  # of a text with its START and END
    pooling: Pooling = "mean"
    normalize: bool = True
    problem_type: str = "auto"  # of the head class: data.problem_type


class EncoderSource(ExportSource, Protocol):
    """The parts of an encoder's predictor that an export reads; with a head for labels it also has `labels`."""

    @property
    def tokenizer(self) -> TrainedTokenizer: ...


@dataclass(frozen=True)
class TextProcessors:
    """A tokenizer, which `load_tokenizer` reads, and the labels; `inputs` are the arguments of their model."""

    load_tokenizer: Callable[[Path], TrainedTokenizer]
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")

    def read(self, folder: Folder) -> EncoderFolder:
        """The folder with its tokenizer, labels and pooling."""
        path, c, modules = folder.path, folder.config, read_modules(folder.root)
        tokenizer = self.load_tokenizer(path)
        assert isinstance(c.positions, slots.Learned)
        if tokenizer.size > c.vocab:
            raise UserError(f"{path} has {tokenizer.size} tokens and its model {c.vocab}; they belong to two models")
        check_vocabulary(path, tokenizer.backend.get_vocab().values(), c.vocab)
        check_control_ids(path, folder.theirs, c.vocab)
        longest = apply_sentence_settings(path, tokenizer, c.positions.tokens)
        labels = tuple(label_names(folder.theirs)) if c.labels else ()
        problem = problem_type(folder.theirs, c)
        return EncoderFolder(
            **vars(folder), tokenizer=tokenizer, labels=labels, max_tokens=longest, pooling=modules.pooling,
            normalize=modules.normalize, problem_type=problem,
        )  # fmt: skip

    def load(self, folder: EncoderFolder, overrides: JsonMapping) -> "AnyPredictor":
        """The predictor of the task that fits the head."""
        task = import_module(f"regard.tasks.{TASKS[folder.config.head]}.task")
        predictor: AnyPredictor = task.from_folder(folder, overrides)
        return predictor

    def write(self, predictor: EncoderSource, draft: Path) -> JsonObject:
        """Write the tokenizer. Texts contain no control tokens, except `<mask>` where masked words are predicted."""
        c, text = predictor.run.model, predictor.tokenizer
        backend = portable_tokenizer(text)
        backend.post_processor = text_template(text)
        about = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": SPECIALS[PAD],
            "unk_token": SPECIALS[UNK],
            "cls_token": SPECIALS[START],
            "sep_token": SPECIALS[END],
            **({} if text.mask is None else {"mask_token": MASK}),
            "split_special_tokens": text.mask is None or c.head != "words",
            "clean_up_tokenization_spaces": False,
            "model_max_length": c.positions.tokens,
            "model_input_names": list(self.inputs),
        }
        write_tokenizer_json(draft, backend, about)
        return {"pad_token_id": text.pad}


def text_template(text: TrainedTokenizer) -> processors.TemplateProcessing:
    """The post-processor that puts START and END around a text or a pair of texts."""
    start, end = SPECIALS[START], SPECIALS[END]
    return processors.TemplateProcessing(
        single=f"{start}:0 $A:0 {end}:0",
        pair=f"{start}:0 $A:0 {end}:0 $B:1 {end}:1",
        special_tokens=[(start, text.start), (end, text.end)],
    )


# --- the export is compared ------------------------------------------------------------------------------------------


class EncoderSample:
    """A few random texts and all outputs that the run's heads give for them; `arguments` are passed to their model."""

    def __init__(self, predictor: EncoderSource) -> None:
        text, c = predictor.tokenizer, predictor.run.model
        self.tokenizer, self.head, self.next_sentence = text, c.head, c.next_sentence
        model: bert.Model = predictor.module  # type: ignore[assignment]
        longest = min(9, (model.context or 11) - 2)
        draw = torch.Generator().manual_seed(1)
        rows = [torch.randint(text.size, (1 + i % longest,), generator=draw).tolist() for i in range(SAMPLE_COUNT)]
        self.texts = text.decode(rows)
        ids = [ids[:longest] for ids in text.encode(self.texts)]
        width = max(map(len, ids)) + 2
        padded = [[text.start, *row, text.end] + [text.pad] * (width - 2 - len(row)) for row in ids]
        self.tokens = torch.tensor(padded)
        self.valid = torch.arange(width) < torch.tensor([[len(row) + 2] for row in ids])
        self.inputs, self.arguments = f"{len(self.texts)} texts", dict[str, Tensor]()
        self.expected = self.outputs(model)

    @torch.no_grad()
    def outputs(self, model: bert.Model) -> list[Tensor]:
        encoded = model.encode(Inputs("tokens", self.tokens, self.valid))
        if self.head in LABELED:
            logits = model.label_logits(encoded)
            return [logits if self.head == "class" else logits[self.valid]]
        next_sentence = [model.next_sentence_logits(encoded)] if self.next_sentence else []
        if self.head == "words":
            return [model.logits(encoded.states)[self.valid], *next_sentence]
        return next_sentence or [encoded.states[self.valid]]

    def ours(self, folder: EncoderFolder) -> list[Tensor]:
        tokens = self.tokenizer.encode(self.texts)
        compare_tokens("the folder", self.texts, folder.tokenizer.encode(self.texts), tokens)
        return self.outputs(folder.model)

    def theirs(self, model: nn.Module, draft: Path, hf: ModuleType) -> list[Tensor]:
        text = self.tokenizer
        ids = hf.AutoTokenizer.from_pretrained(draft)(self.texts, split_special_tokens=True).input_ids
        if any(row[0] != text.start or row[-1] != text.end for row in ids):
            raise export_error("transformers does not put START and END around a text")
        compare_tokens("transformers", self.texts, [row[1:-1] for row in ids], text.encode(self.texts))
        result = model(self.tokens, attention_mask=self.valid.long(), **self.arguments)
        fields = ("last_hidden_state", "prediction_logits", "logits", "seq_relationship_logits")
        outputs = [result[field] for field in fields if field in result]
        return [output[self.valid] if output.dim() == 3 else output for output in outputs]

    def findings(self) -> str:
        return "tokens equal, "
