"""Write a run as a Hugging Face BERT folder: `transformers` and our own reader give the same numbers for equal tokens.

The head decides which class it becomes. The tokenizer is written as tokenizer.json and puts START and END, which are
BERT's [CLS] and [SEP], around every text.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Protocol

import torch
from safetensors.torch import save
from tokenizers import processors
from torch import Tensor

from ...config.run import AnyRun
from ...families import bert
from ...files import JsonMapping, JsonObject, read_json, write_json
from ...parts import Inputs, slots
from ...processors.text.tokenizers import END, MASK, PAD, SPECIALS, START, UNK, TrainedTokenizer
from ..parity import SAMPLE_COUNT, check_close, export_error, quiet
from .bert import CONFIG, LABELED, EncoderFolder, architecture, names, read
from .tokenizer_export import portable_tokenizer
from .weight_names import export_weights

unsupported = CONFIG.unsupported


class EncoderSource(Protocol):
    """The parts of an encoder's predictor that an export reads; with a head for labels it also has `labels`."""

    @property
    def run(self) -> AnyRun: ...
    @property
    def model(self) -> bert.Model: ...
    @property
    def tokenizer(self) -> TrainedTokenizer: ...


def write(predictor: EncoderSource, draft: Path, precision: str) -> None:
    """Write everything in the folder except its README."""
    c: bert.Config = predictor.run.model
    write_encoder(predictor, draft, config(c, predictor.tokenizer), tensors(predictor.model, c))


def write_encoder(
    predictor: EncoderSource,
    draft: Path,
    config: JsonMapping,
    tensors: Mapping[str, Tensor],
    inputs: Sequence[str] = ("input_ids", "token_type_ids", "attention_mask"),
) -> None:
    """Write the files of an encoder's folder. Its labels are added to `config`; `inputs` are the model's arguments."""
    c: bert.EncoderConfig = predictor.run.model
    draft.mkdir()
    write_json(draft / "config.json", {**config, **label_maps(predictor)})
    (draft / "model.safetensors").write_bytes(save(dict(tensors), {"format": "pt"}))
    backend = portable_tokenizer(predictor.tokenizer)
    backend.post_processor = text_template(predictor.tokenizer)
    (draft / "tokenizer.json").write_text(backend.to_str(pretty=True) + "\n", encoding="utf-8")
    about = tokenizer_config(c, predictor.tokenizer) | {"model_input_names": list(inputs)}
    write_json(draft / "tokenizer_config.json", about)


def tag(c: bert.EncoderConfig) -> str:
    """The Hub's name for the task."""
    tags = {"words": "fill-mask", "class": "text-classification", "tag": "token-classification"}
    return tags.get(c.head, "feature-extraction")


def config(c: bert.Config, tokenizer: TrainedTokenizer) -> JsonObject:
    """The config.json of a model."""
    return {"model_type": "bert", **CONFIG.write(c), "pad_token_id": tokenizer.pad, "dtype": "float32"}


def label_maps(predictor: EncoderSource) -> JsonObject:
    """The labels as `id2label` and `label2id`."""
    if predictor.run.model.head not in LABELED:
        return {}
    labels: list[str] = list(predictor.labels)  # type: ignore[attr-defined]
    several = predictor.run.task == "classify" and predictor.run.data.problem_type == "multi_label"
    return {
        **({"problem_type": "multi_label_classification"} if several else {}),
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }


def tensors(model: bert.Model, c: bert.Config) -> dict[str, Tensor]:
    """The weights under the names that `save_pretrained` would write, without heads that the class does not have."""
    theirs, class_name = export_weights(model, names(c)), architecture(c)
    if c.tied:
        theirs.pop("cls.predictions.decoder.weight", None)
    if class_name in ("BertForMaskedLM", "BertForTokenClassification"):
        theirs = {name: tensor for name, tensor in theirs.items() if not name.startswith("pooler.")}
    if "Classification" in class_name:
        theirs = {name: tensor for name, tensor in theirs.items() if not name.startswith("cls.")}
    heads = ("cls.", "classifier.")
    prefix = "" if class_name == "BertModel" else "bert."
    return {
        name if name.startswith(heads) else prefix + name: tensor.detach().clone().contiguous()
        for name, tensor in theirs.items()
    }


def text_template(text: TrainedTokenizer) -> processors.TemplateProcessing:
    """The post-processor that puts START and END around a text or a pair of texts."""
    start, end = SPECIALS[START], SPECIALS[END]
    return processors.TemplateProcessing(
        single=f"{start}:0 $A:0 {end}:0",
        pair=f"{start}:0 $A:0 {end}:0 $B:1 {end}:1",
        special_tokens=[(start, text.start), (end, text.end)],
    )


def tokenizer_config(c: bert.EncoderConfig, text: TrainedTokenizer) -> JsonObject:
    """Texts cannot contain control tokens, except `<mask>` for models that predict masked words."""
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
        "model_max_length": c.positions.tokens,
    }


# --- the export is checked -------------------------------------------------------------------------------------------


def check(predictor: EncoderSource, draft: Path, precision: str) -> str:
    """Compare the folder with the run, by our reader and by transformers where it is installed; a report."""
    folder = read(draft, read_json(draft / "config.json"))
    return check_folder(EncoderSample(predictor), folder, draft, architecture(predictor.run.model))


def check_folder(sample: "EncoderSample", folder: EncoderFolder, draft: Path, name: str, **arguments: Tensor) -> str:
    """`name` is the class of transformers, `arguments` are passed to its model."""
    sample.compare_tokens("the folder", folder.tokenizer.encode(sample.texts))
    difference = sample.compare("the folder", sample.outputs(folder.model))
    readers = ["regard"]
    if find_spec("transformers") is not None:
        import transformers as hf

        with quiet(hf):
            outputs = transformers_outputs(sample, draft, hf, name, **arguments)
            difference = max(difference, sample.compare("transformers", outputs))
        readers.append(f"transformers {hf.__version__}")
    result = f"tokens equal, outputs apart by {difference:.1g} (relative)"
    return f"{len(sample.texts)} texts with {' and '.join(readers)}: {result}"


class EncoderSample:
    """A few random texts and all outputs that the run's heads give for them."""

    def __init__(self, predictor: EncoderSource) -> None:
        text = predictor.tokenizer
        c: bert.EncoderConfig = predictor.run.model
        self.tokenizer, self.head, self.next_sentence = text, c.head, c.next_sentence
        longest = min(9, (predictor.model.context or 11) - 2)
        draw = torch.Generator().manual_seed(1)
        rows = [torch.randint(text.size, (1 + i % longest,), generator=draw).tolist() for i in range(SAMPLE_COUNT)]
        self.texts = text.decode(rows)
        ids = [ids[:longest] for ids in text.encode(self.texts)]
        width = max(map(len, ids)) + 2
        padded = [[text.start, *row, text.end] + [text.pad] * (width - 2 - len(row)) for row in ids]
        self.tokens = torch.tensor(padded)
        self.valid = torch.arange(width) < torch.tensor([[len(row) + 2] for row in ids])
        self.expected = self.outputs(predictor.model)

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

    def compare(self, reader: str, outputs: list[Tensor]) -> float:
        pairs = zip(outputs, self.expected, strict=True)
        return max(check_close(f"{reader} gives logits", actual, expected) for actual, expected in pairs)

    def compare_tokens(self, reader: str, ids: list[list[int]]) -> None:
        for text, actual, expected in zip(self.texts, ids, self.tokenizer.encode(self.texts), strict=True):
            if actual != expected:
                raise export_error(f"{reader} gives other tokens for {text!r}: {actual} and not {expected}")


@torch.no_grad()
def transformers_outputs(
    sample: EncoderSample, draft: Path, hf: ModuleType, name: str, **arguments: Tensor
) -> list[Tensor]:
    """The outputs of transformers' class `name` for the sample; the tokens are compared on the way."""
    model, tokenizer = getattr(hf, name).from_pretrained(draft).eval(), hf.AutoTokenizer.from_pretrained(draft)
    ids = tokenizer(sample.texts, split_special_tokens=True).input_ids
    text = sample.tokenizer
    if any(row[0] != text.start or row[-1] != text.end for row in ids):
        raise export_error("transformers does not put START and END around a text")
    sample.compare_tokens("transformers", [row[1:-1] for row in ids])
    result = model(sample.tokens, attention_mask=sample.valid.long(), **arguments)
    fields = ("last_hidden_state", "prediction_logits", "logits", "seq_relationship_logits")
    outputs = [result[field] for field in fields if field in result]
    return [output[sample.valid] if output.dim() == 3 else output for output in outputs]
