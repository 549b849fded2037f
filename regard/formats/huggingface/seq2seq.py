"""Parts shared by folders of encoder-decoder models of texts: their two tokenizers, generation settings and task."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...files import JsonMapping, JsonObject, write_json
from ...processors.text.external import MarianTokenizer
from ...processors.text.tokenizers import Tokenizer, TrainedTokenizer
from ..parity import Seq2SeqSample
from .control_ids import check_control_ids, check_vocabulary
from .format import Export, Folder
from .generation import (
    SEQ2SEQ,
    decode_entry,
    generation_config,
    max_positions,
    read_generation_config,
    seq2seq_ids,
)
from .tokenizer_export import TARGET_TOKENIZER_FILE, TOKENIZER_FILE, portable_tokenizer, tokenizer_config

if TYPE_CHECKING:
    from ...tasks.translate.task import TranslatePredictor


@dataclass(frozen=True)
class Seq2SeqFolder(Folder):
    """The contents of a folder with an encoder-decoder of texts."""

    source: Tokenizer
    target: Tokenizer
    generation: JsonObject  # generation_config.json over config.json


@dataclass(frozen=True)
class TextPairProcessors:
    """The tokenizers of source and target, which `load_tokenizers` reads by the folder and its generation settings."""

    load_tokenizers: Callable[[Folder, JsonMapping], tuple[Tokenizer, Tokenizer]]

    def read(self, folder: Folder) -> Seq2SeqFolder:
        """The folder with its tokenizers and generation settings."""
        path, theirs, c = folder.path, folder.theirs, folder.config
        generation, sizes = read_generation_config(path, theirs), (c.vocab, c.target_vocab or c.vocab)
        check_control_ids(path, theirs, sizes[0], keys=("pad_token_id", "eos_token_id"))  # of the source as well
        check_control_ids(path, theirs, sizes[1])
        source, target = self.load_tokenizers(folder, generation)
        for tokenizer, size in zip((source, target), sizes, strict=True):
            check_vocabulary(path, [tokenizer.size - 1], size)
        return Seq2SeqFolder(**vars(folder), source=source, target=target, generation=generation)

    def load(self, folder: Seq2SeqFolder, overrides: JsonMapping) -> "TranslatePredictor":
        """A predictor from text to text."""
        from ...device import resolve_device
        from ...tasks.translate.task import TranslatePredictor

        run, filters = SEQ2SEQ.run(folder, folder.generation, folder.target, overrides)
        return TranslatePredictor(run, folder.model, folder.source, folder.target, resolve_device(run.device), filters)

    def write(self, predictor: "TranslatePredictor", draft: Path) -> JsonObject:
        """Write the tokenizers; return the control tokens and the decode settings of the run."""
        write_tokenizer_files(predictor, draft, max_positions(predictor.run))
        return seq2seq_ids(predictor.target) | decode_entry(predictor.run)


def written_generation(predictor: "TranslatePredictor") -> JsonObject:
    """generation_config.json of a run."""
    run = predictor.run
    return generation_config(run, predictor.target, max_positions(run), predictor.suppressed)


def usage(predictor: "TranslatePredictor") -> str:
    """A usage example with transformers."""
    target = "source"
    if has_target_folder(predictor):
        target = 'AutoTokenizer.from_pretrained(folder, subfolder="target")'
    return f"""
```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

folder = "."
source = AutoTokenizer.from_pretrained(folder)
target = {target}
model = AutoModelForSeq2SeqLM.from_pretrained(folder)
batch = source(["a sentence"], return_tensors="pt", padding=True)
print(target.batch_decode(model.generate(**batch), skip_special_tokens=True))
```

transformers ends a beam search as regard does with `decode.strategy.early_stopping=heuristic`.
"""


def seq2seq_export(model_type: str) -> "Export[TranslatePredictor, Seq2SeqFolder]":
    """How runs become folders of this type."""
    return Export(lambda c: model_type, Seq2SeqSample, usage, lambda c: "translation", written_generation)


def write_tokenizers(predictor: "TranslatePredictor", draft: Path) -> dict[str, TrainedTokenizer]:
    """Write one tokenizer.json, or one for source and one for target; return the tokenizers by file name."""
    tokenizers: JsonObject = {TOKENIZER_FILE: predictor.source}
    if predictor.target is not predictor.source:
        tokenizers[TARGET_TOKENIZER_FILE] = predictor.target
    for name, tokenizer in tokenizers.items():
        (draft / name).parent.mkdir(exist_ok=True)
        (draft / name).write_text(portable_tokenizer(tokenizer).to_str(pretty=True) + "\n", encoding="utf-8")
    return tokenizers


def write_tokenizer_files(predictor: "TranslatePredictor", draft: Path, max_length: int) -> None:
    """Write the tokenizers, each with its tokenizer_config.json."""
    if isinstance(predictor.source, MarianTokenizer):
        assert isinstance(predictor.target, MarianTokenizer)
        write_marian_tokenizer(predictor.source, predictor.target, draft, max_length)
        return
    for name, tokenizer in write_tokenizers(predictor, draft).items():
        write_json((draft / name).parent / "tokenizer_config.json", tokenizer_config(tokenizer, max_length))


def write_marian_tokenizer(source: MarianTokenizer, target: MarianTokenizer, draft: Path, max_length: int) -> None:
    """The files of a Marian folder that a run started from: two sentencepiece models with one vocabulary, or two."""
    for name, tokenizer in (("source.spm", source), ("target.spm", target)):
        (draft / name).write_bytes(tokenizer.encoder.serialized_model_proto())
    write_json(draft / "vocab.json", source.vocab)
    separate = source.vocab != target.vocab
    if separate:
        write_json(draft / "target_vocab.json", target.vocab)
    settings: JsonObject = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": separate,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    write_json(draft / "tokenizer_config.json", settings)


def has_target_folder(predictor: "TranslatePredictor") -> bool:
    """True if the target has a tokenizer of its own in `target/`; both sides of Marian are one tokenizer."""
    return predictor.target is not predictor.source and not isinstance(predictor.source, MarianTokenizer)
