"""The tokenizer that the metadata of a GGUF file describes: sentencepiece's BPE (Llama 2) or byte-level BPE (Llama 3).

Encodings equal those of the original tokenizer. The metadata only names how a byte-level tokenizer splits text into
words (`tokenizer.ggml.pre`); an unknown name is refused, because a similar split would give other tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from ..files import JsonMapping, JsonObject
from ..processors.text.external import SPACE, FolderTokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, _, BYTE = range(1, 7)  # tokenizer.ggml.token_type
PREFIX = "tokenizer.ggml."
LISTS = {"llama": ("tokens", "scores"), "gpt2": ("tokens", "merges")}  # by tokenizer.ggml.model: what it needs
SENTENCEPIECE_IDS = {"unknown": 0, "bos": 1, "eos": 2}  # where the file does not name them


@dataclass(frozen=True)
class WordSplit:
    """How a byte-level tokenizer splits text into words, and the other rules of its type."""

    pattern: str = ""  # empty: GPT-2's
    digits_alone: bool = False  # every digit is a word
    whole_words: bool = False  # a word that is in the vocabulary is one token, regardless of the merges
    adds_start: bool = False  # where add_bos_token is absent
    compose: bool = False  # text is normalized to NFC first


CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"

LLAMA3 = WordSplit(rf"{CONTRACTION}|{WORD}|\p{{N}}{{1,3}}|{MARKS}|{REST}", whole_words=True, adds_start=True)
QWEN2 = rf"{CONTRACTION}|{WORD}|\p{{N}}|{MARKS}|{REST}"
TEKKEN = WordSplit(rf"{CASED}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{REST}", whole_words=True, adds_start=True)
SPLITS = {  # by tokenizer.ggml.pre
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "qwen2": WordSplit(QWEN2, compose=True),
    "deepseek-r1-qwen": WordSplit(QWEN2),
    "gpt-2": WordSplit(),
    "smollm": WordSplit(digits_alone=True),
    "tekken": TEKKEN,
}


def build_tokenizer(metadata: JsonMapping) -> FolderTokenizer:
    """The tokenizer of a file; ValueError names what regard cannot represent, KeyError what is missing."""
    settings: JsonObject = {
        key.removeprefix(PREFIX): value for key, value in metadata.items() if key.startswith(PREFIX)
    }
    model = settings.get("model")
    if model not in LISTS:
        raise ValueError(f"{PREFIX}model is {model!r}; regard reads llama (sentencepiece) and gpt2 (byte-level BPE)")
    if missing := [PREFIX + key for key in LISTS[model] if key not in settings]:
        raise KeyError(missing[0])
    split = None if model == "llama" else _word_split(settings)
    backend = _sentencepiece(settings) if split is None else _byte_level(settings, split)
    _add_tokens(backend, settings)
    roles = _control_ids(settings, ("bos", "eos", "unknown", "padding"), {} if split else SENTENCEPIECE_IDS)
    end = roles["eos"]
    start, unk, pad = (roles.get(role, end) for role in ("bos", "unknown", "padding"))
    if settings.get("add_bos_token", split.adds_start if split else True):
        name = settings["tokens"][start]
        backend.post_processor = processors.TemplateProcessing(single=[name, "$A"], special_tokens=[(name, start)])
    return FolderTokenizer(backend, pad, start, end, unk)


def _control_ids(settings: JsonMapping, roles: Sequence[str], defaults: Mapping[str, int]) -> dict[str, int]:
    """The ids of the roles that the file names, or that have a default."""
    ids: dict[str, int] = {
        **defaults,
        **{role: settings[f"{role}_token_id"] for role in roles if f"{role}_token_id" in settings},
    }
    if "eos" not in ids:
        raise KeyError(f"{PREFIX}eos_token_id")
    for role, number in ids.items():
        if not 0 <= number < len(settings["tokens"]):
            raise ValueError(f"{PREFIX}{role}_token_id is {number}, but there are {len(settings['tokens'])} tokens")
    return ids


def _word_split(settings: JsonMapping) -> WordSplit:
    if (name := settings.get("pre", "default")) not in SPLITS:
        raise ValueError(
            f"{PREFIX}pre is {name!r}; regard reads {', '.join(SPLITS)}; load the original Hugging Face folder instead"
        )
    return SPLITS[name]


def _token_types(settings: JsonMapping) -> Sequence[int]:
    types: Sequence[int] = settings.get("token_type") or [NORMAL] * len(settings["tokens"])
    return types


def _add_tokens(backend: Backend, settings: JsonMapping) -> None:
    """Control tokens, which text never encodes to, and symbols, which text encodes to as a whole."""
    for token_type in (CONTROL, USER_DEFINED):
        names = [
            name
            for name, name_type in zip(settings["tokens"], _token_types(settings), strict=True)
            if name_type == token_type
        ]
        backend.add_tokens([AddedToken(name, special=token_type == CONTROL, normalized=False) for name in names])


# --- sentencepiece ---------------------------------------------------------------------------------------------------


def _sentencepiece(settings: JsonMapping) -> Backend:
    """A BPE whose merges are those that the vocabulary allows, ranked by the scores of their results."""
    tokens, types = settings["tokens"], _token_types(settings)
    vocab = {name: number for number, name in enumerate(tokens)}
    model = models.BPE(
        vocab,
        _merges(tokens, settings["scores"], types),
        unk_token=tokens[settings.get("unknown_token_id", 0)],
        fuse_unk=True,
        byte_fallback=all(f"<0x{byte:02X}>" in vocab for byte in range(256)),
    )
    backend = Backend(model)
    spaced = settings.get("add_space_prefix", True)
    steps: list[normalizers.Normalizer] = [normalizers.Prepend(SPACE)] if spaced else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    undo: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*undo, decoders.Strip(" ", 1, 0)] if spaced else undo)
    return backend


def _merges(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """Every split of an ordinary token into two others, the best token first."""
    ordinary = {
        name: score
        for name, score, token_type in zip(tokens, scores, types, strict=True)
        if token_type in (NORMAL, USER_DEFINED)
    }
    splits = [
        (-score, -place, name)  # of one token, the longer left part first
        for name, score in ordinary.items()
        for place in range(1, len(name))
        if name[:place] in ordinary and name[place:] in ordinary
    ]
    return [(name[:-before], name[-before:]) for _, before, name in sorted(splits)]


# --- byte-level BPE --------------------------------------------------------------------------------------------------


def _byte_level(settings: JsonMapping, split: WordSplit) -> Backend:
    vocab = {name: number for number, name in enumerate(settings["tokens"])}
    merges = [tuple(merge.split(" ")) for merge in settings["merges"]]
    try:
        backend = Backend(models.BPE(vocab, merges, ignore_merges=split.whole_words))
    except Exception as error:  # the library raises nothing more specific
        raise ValueError(f"the vocabulary does not fit its merges ({error}); fetch the file again") from error
    if split.compose:
        backend.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Digits(True)] if split.digits_alone else []
    if split.pattern:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split.pattern))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    backend.decoder = decoders.ByteLevel()
    return backend
