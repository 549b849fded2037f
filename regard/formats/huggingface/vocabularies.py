"""Imported vocabularies as trained tokenizers, which a run can save: their ids, with our names for control tokens."""

import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from ...errors import UserError
from ...files import JsonMapping, JsonObject, read_json, read_optional_json
from ...processors.text.tokenizers import END, MASK, PAD, SPECIALS, START, UNK, TrainedTokenizer, sentinel
from .. import sentencepiece_proto

CONTROL_ROLES = {
    SPECIALS[PAD]: "pad_token", SPECIALS[UNK]: "unk_token", SPECIALS[START]: "cls_token", SPECIALS[END]: "sep_token",
    MASK: "mask_token",
}  # fmt: skip
WORDPIECE_CLASSES = ("BertTokenizer", "BertTokenizerFast")
COMPLETE_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")  # tokenizer.json is complete


def adopt_tokenizer(file: Path, content: JsonObject, roles: Mapping[str, str]) -> TrainedTokenizer:
    """A tokenizer.json as one of ours. `roles` maps our control names to theirs; other added tokens become symbols."""
    model, added = content["model"], content["added_tokens"]
    vocab: JsonObject | list[Any] = model["vocab"]
    names = vocab if isinstance(vocab, dict) else [token for token, _ in vocab]
    ids = dict(vocab) if isinstance(vocab, dict) else {token: number for number, token in enumerate(names)}
    ids |= {token["content"]: token["id"] for token in added}
    for name, theirs in roles.items():
        if theirs not in ids and name != MASK:
            raise UserError(f"{file} has no {theirs!r} in its vocabulary; use the tokenizer of this model")
        if name != theirs and name in ids:
            raise UserError(
                f"{file} has an entry {name!r}, which is regard's name for its {theirs!r}; rename that entry"
            )
    ours = {theirs: name for name, theirs in roles.items() if theirs in ids}
    renamed = [ours.get(name, name) for name in names]
    values = vocab.values() if isinstance(vocab, dict) else [score for _, score in vocab]
    entries = zip(renamed, values, strict=True)
    model["vocab"] = dict(entries) if isinstance(vocab, dict) else list(entries)
    if "unk_token" in model:
        model["unk_token"] = ours.get(model["unk_token"], model["unk_token"])
    tokens = [token | {"special": False} for token in added if token["content"] not in ours]
    tokens += [control_token(ours[theirs], ids[theirs]) for theirs in ours]
    content["added_tokens"] = sorted(tokens, key=lambda token: token["id"])
    content |= {"truncation": None, "padding": None, "post_processor": None}
    try:
        backend = Backend.from_str(json.dumps(content))
    except Exception as error:  # the library raises nothing more specific
        raise UserError(f"{file} is no complete tokenizer ({error}); fetch the folder again") from error
    return TrainedTokenizer(split_control_names(backend, list(ours.values())))


def split_control_names(backend: Backend, names: list[str]) -> Backend:
    """Split control names in a text, such as `</s>`, so that the vocabulary cannot match them as entries."""
    if isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel | pre_tokenizers.BertPreTokenizer):
        return backend  # these split them anyway
    pattern = "|".join(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names)
    steps = [
        *([backend.pre_tokenizer] if backend.pre_tokenizer else []),
        pre_tokenizers.Split(Regex(pattern), "isolated"),
    ]
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return backend


def control_token(name: str, number: int) -> JsonObject:
    """The added_tokens entry of a control token."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": name, **plain, "special": True}


def tokenizer_settings(path: Path) -> JsonObject:
    """The settings of a folder's tokenizer beside the vocabulary itself."""
    settings: JsonObject = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        settings |= read_optional_json(path / file)
    return {
        key: value["content"] if isinstance(value, dict) and "content" in value else value
        for key, value in settings.items()
    }


def read_tokenizer_json(path: Path) -> JsonObject:
    """The content of a folder's tokenizer.json."""
    content: JsonObject = read_json(path / "tokenizer.json")
    model, added = content.get("model"), content.get("added_tokens")
    if not isinstance(model, dict) or "vocab" not in model or not isinstance(added, list):
        raise UserError(f"{path / 'tokenizer.json'} is no tokenizer; fetch the folder again")
    return content


def _check_class(path: Path, settings: JsonMapping, classes: tuple[str, ...]) -> bool:
    """True if the class of a tokenizer takes everything from tokenizer.json; others than `classes` are refused."""
    name, known = settings.get("tokenizer_class") or classes[0], (*classes, *COMPLETE_CLASSES)
    if name not in known:
        raise UserError(f"{path} has a {name} (tokenizer_class); regard reads {', '.join(known)}")
    if name in COMPLETE_CLASSES and not (path / "tokenizer.json").is_file():
        raise UserError(f"{path} has no tokenizer.json, which a {name} needs; fetch the folder again")
    return name in COMPLETE_CLASSES


# --- BERT's WordPiece ------------------------------------------------------------------------------------------------


def load_wordpiece(path: Path) -> TrainedTokenizer:
    """The tokenizer of a BERT folder: vocab.txt or tokenizer.json, split into words as transformers does.

    tokenizer_config.json decides how, over tokenizer.json, unless its class takes everything from tokenizer.json.
    """
    settings = tokenizer_settings(path)
    complete = _check_class(path, settings, WORDPIECE_CLASSES)
    file = next((path / name for name in ("tokenizer.json", "vocab.txt") if (path / name).is_file()), None)
    if file is None:
        raise UserError(f"{path} has no vocab.txt; a BERT folder needs its tokenizer")
    from_list = file.name == "vocab.txt"
    content: JsonObject = (
        {"model": {"vocab": _read_vocab_lines(file)}, "added_tokens": []} if from_list else read_tokenizer_json(path)
    )
    roles = {name: settings.get(key) or f"[{key[:-6].upper()}]" for name, key in CONTROL_ROLES.items()}
    if complete:
        return adopt_tokenizer(file, content, roles)
    if content["model"].get("type", "WordPiece") != "WordPiece":
        name = settings.get("tokenizer_class") or WORDPIECE_CLASSES[0]
        raise UserError(f"{file} is of type {content['model']['type']}; a {name} has WordPiece")
    backend = Backend(models.WordPiece(content["model"]["vocab"], unk_token=roles[SPECIALS[UNK]]))
    backend.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return adopt_tokenizer(file, json.loads(backend.to_str()) | {"added_tokens": content["added_tokens"]}, roles)


def _read_vocab_lines(file: Path) -> dict[str, int]:
    try:
        lines = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text ({error}); fetch the folder again") from error
    return {line.rstrip("\r"): number for number, line in enumerate(lines)}


# --- RoBERTa's byte-level BPE ----------------------------------------------------------------------------------------

BYTE_BPE_CLASSES = ("RobertaTokenizer", "RobertaTokenizerFast", "LongformerTokenizer", "LongformerTokenizerFast")


def load_byte_bpe(path: Path) -> TrainedTokenizer:
    """The tokenizer of RoBERTa and its relatives: tokenizer.json, or vocab.json and merges.txt."""
    settings = tokenizer_settings(path)
    _check_class(path, settings, BYTE_BPE_CLASSES)
    defaults = {SPECIALS[PAD]: "<pad>", SPECIALS[UNK]: "<unk>", SPECIALS[START]: "<s>", SPECIALS[END]: "</s>"}
    roles = {name: settings.get(key) or defaults.get(name, "<mask>") for name, key in CONTROL_ROLES.items()}
    if (path / "tokenizer.json").is_file():
        return adopt_tokenizer(path / "tokenizer.json", read_tokenizer_json(path), roles)
    backend = byte_level_bpe(path, settings.get("add_prefix_space", False))
    return adopt_tokenizer(path / "vocab.json", json.loads(backend.to_str()), roles)


def byte_level_bpe(path: Path, add_prefix_space: bool = False) -> Backend:
    """The tokenizer of vocab.json and merges.txt, as in GPT-2."""
    vocab, merges = path / "vocab.json", path / "merges.txt"
    if not (vocab.is_file() and merges.is_file()):
        raise UserError(
            f"{path} has neither tokenizer.json nor vocab.json and merges.txt; write them with transformers: "
            f"AutoTokenizer.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})"
        )
    try:
        backend = Backend(models.BPE.from_file(str(vocab), str(merges)))
    except Exception as error:  # the library raises nothing more specific
        raise UserError(
            f"{vocab} and {merges.name} are no byte-level vocabulary ({error}); fetch the folder again"
        ) from error
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    return backend


# --- T5's unigram model ----------------------------------------------------------------------------------------------


def load_t5_unigram(path: Path) -> TrainedTokenizer:
    """The tokenizer of a T5 folder: tokenizer.json, or one built from spiece.model."""
    settings = tokenizer_settings(path)
    roles = {
        SPECIALS[PAD]: settings.get("pad_token") or "<pad>",
        SPECIALS[END]: settings.get("eos_token") or "</s>",
        SPECIALS[UNK]: settings.get("unk_token") or "<unk>",
    }
    if settings.get("bos_token"):  # the first T5 has none
        roles[SPECIALS[START]] = settings["bos_token"]
    if (path / "tokenizer.json").is_file():
        return adopt_tokenizer(path / "tokenizer.json", read_tokenizer_json(path), roles)
    file = path / "spiece.model"
    if not file.is_file():
        raise UserError(f"{path} has neither tokenizer.json nor spiece.model; a T5 folder needs its tokenizer")
    return adopt_tokenizer(file, t5_tokenizer_json(file, settings.get("extra_ids", 100)), roles)


def t5_tokenizer_json(file: Path, extra: int) -> JsonObject:
    """tokenizer.json of a T5 sentencepiece model, with `extra` sentinels appended in reverse order."""
    tokens, charsmap = _read_sentencepiece(file)
    sentinels = [sentinel(number) for number in reversed(range(extra))]
    backend = _unigram_backend(tokens, [(name, 0.0) for name in sentinels])
    if charsmap:
        backend.normalizer = normalizers.Precompiled(charsmap)
    space = {"replacement": "▁", "prepend_scheme": "always"}
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**space)]  # type: ignore[arg-type]
    )
    backend.decoder = decoders.Metaspace(**space)  # type: ignore[arg-type]
    backend.add_tokens(sentinels)
    content: JsonObject = json.loads(backend.to_str())
    return content


ScoredTokens = list[tuple[str, float, int]]


def _read_sentencepiece(file: Path) -> tuple[ScoredTokens, bytes]:
    try:
        tokens, model_type, charsmap = sentencepiece_proto.parse_model(file.read_bytes())
    except (IndexError, struct.error, UnicodeDecodeError, KeyError) as error:
        raise UserError(f"{file} is no sentencepiece model ({error}); fetch the folder again") from error
    if not tokens or model_type != 1:
        raise UserError(f"{file} is no unigram model of sentencepiece; fetch the folder again")
    return tokens, charsmap


def _unigram_backend(tokens: ScoredTokens, further: list[tuple[str, float]]) -> Backend:
    unk = next(number for number, (_, _, token_type) in enumerate(tokens) if token_type == 2)
    vocab = [(token, score) for token, score, _ in tokens] + further
    return Backend(models.Unigram(vocab, unk_id=unk, byte_fallback=False))


# --- BigBird's unigram model -----------------------------------------------------------------------------------------


def load_bigbird_unigram(path: Path) -> TrainedTokenizer:
    """The tokenizer of a BigBird folder: tokenizer.json, or one built from spiece.model.

    START and END are its [CLS] and [SEP]. Its own unused <s> and </s> get other names here.
    """
    settings = tokenizer_settings(path)
    defaults = {
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    roles = {name: settings.get(key) or defaults[key] for name, key in CONTROL_ROLES.items()}
    file = next((path / name for name in ("tokenizer.json", "spiece.model") if (path / name).is_file()), None)
    if file is None:
        raise UserError(f"{path} has neither tokenizer.json nor spiece.model; its model needs a tokenizer")
    content = (
        read_tokenizer_json(path)
        if file.name == "tokenizer.json"
        else bigbird_tokenizer_json(file, settings.get("add_prefix_space", True))
    )
    renamed = {ours: f"[{ours[1:-1]}]" for ours in (SPECIALS[START], SPECIALS[END]) if ours not in roles.values()}
    model = content["model"]
    model["vocab"] = [[renamed.get(entry, entry), score] for entry, score in model["vocab"]]
    content["added_tokens"] = [
        token | {"content": renamed.get(token["content"], token["content"])} for token in content["added_tokens"]
    ]
    return adopt_tokenizer(file, content, roles)


def bigbird_tokenizer_json(file: Path, add_prefix_space: bool) -> JsonObject:
    """A tokenizer.json built from a BigBird folder."""
    tokens, _ = _read_sentencepiece(file)
    backend = _unigram_backend(tokens, [])
    backend.normalizer = normalizers.Replace(Regex(" {2,}"), "▁")
    space = {"replacement": "▁", "prepend_scheme": "always" if add_prefix_space else "never", "split": True}
    backend.pre_tokenizer = pre_tokenizers.Metaspace(**space)  # type: ignore[arg-type]
    backend.decoder = decoders.Metaspace(**space)  # type: ignore[arg-type]
    content: JsonObject = json.loads(backend.to_str())
    return content
