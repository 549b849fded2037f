"""Normalizers of transcripts (eval.normalize): remove differences of writing that are not recognition errors."""

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

from .spoken_numbers import SCALES, join_numbers
from .whisper_english import normalize_whisper_english

APOSTROPHES = str.maketrans(dict.fromkeys("’‘ʼ＇`´", "'"))
INNER_APOSTROPHE = re.compile(r"(?<=\w)'(?=\w)")
KEPT = "\ue000"  # stands for an apostrophe or a decimal point that stays; private use, so no text has it


def normalize_none(text: str) -> str:
    """The text itself."""
    return text


def normalize_basic(text: str) -> str:
    """NFKC, lower case, without punctuation and symbols; apostrophes inside words stay. For any language."""
    return _without_symbols(INNER_APOSTROPHE.sub(KEPT, _lower(text))).replace(KEPT, "'")


def normalize_english(text: str) -> str:
    """`normalize_basic`, and one writing for contractions, spelling, numbers, amounts of money, titles and fillers."""
    text = _spell_symbols(_lower(text))
    for pattern, long in CONTRACTIONS:
        text = pattern.sub(long, text)
    text = INNER_APOSTROPHE.sub("", text)  # of possessives: writers often leave it out
    words = _without_symbols(DECIMAL_POINT.sub(KEPT, text)).replace(KEPT, ".").split()
    words = [part for word in words if word not in FILLERS for part in WRITTEN.get(word, word).split()]
    return " ".join(join_numbers([_american(word) for word in words]))


NORMALIZERS: dict[str, Callable[[str], str]] = {
    "none": normalize_none,
    "basic": normalize_basic,
    "english": normalize_english,
    "whisper-english": normalize_whisper_english,
}


def _lower(text: str) -> str:
    return unicodedata.normalize("NFKC", text.translate(APOSTROPHES)).lower().translate(APOSTROPHES)


def _without_symbols(text: str) -> str:
    """Punctuation (P), symbols (S) and control characters (C) become spaces. Marks stay: scripts need them."""
    letters = (letter if letter == KEPT or unicodedata.category(letter)[0] not in "PSC" else " " for letter in text)
    return " ".join("".join(letters).split())


# --- English ---------------------------------------------------------------------------------------------------------

FILLERS = {"uh", "uhh", "uhm", "um", "umm", "hm", "hmm", "mm", "mmm", "mhm", "er", "erm"}
WRITTEN = {  # other writings of words
    "mr": "mister", "mrs": "missus", "ms": "miss", "dr": "doctor", "prof": "professor", "st": "saint", "jr": "junior",
    "sr": "senior", "capt": "captain", "lt": "lieutenant", "sgt": "sergeant", "col": "colonel", "gov": "governor",
    "vs": "versus", "etc": "et cetera", "okay": "ok", "alright": "all right", "cannot": "can not", "gonna": "going to",
    "wanna": "want to", "gotta": "got to", "gimme": "give me", "lemme": "let me", "kinda": "kind of",
}  # fmt: skip
IS = "it|he|she|that|what|there|here|who|where|how|when|why|this|everything|something|nothing"
CONTRACTIONS = [
    (re.compile(pattern), long)
    for pattern, long in (
        (r"\bwon't\b", "will not"),
        (r"\bcan't\b", "can not"),
        (r"\bshan't\b", "shall not"),
        (r"\bain't\b", "aint"),  # am, is, are or have not
        (r"\blet's\b", "let us"),
        (r"\by'all\b", "you all"),
        (r"\bma'am\b", "madam"),
        (r"(?<!\w)'cause\b", "because"),
        (r"(?<!\w)'(tis|twas)\b", r"it \1"),
        (r"n't\b", " not"),
        (r"'re\b", " are"),
        (r"'ve\b", " have"),
        (r"'ll\b", " will"),
        (r"'d\b", " would"),
        (r"\bi'm\b", "i am"),
        (rf"\b({IS})'s\b", r"\1 is"),
    )
]

# British endings, American endings, and the beginnings of words that have them. The words are written in parts.
OUR = (
    "arm behavi cand clam col demean discol dishon disfav endeav fav ferv flav glam harb hon hum lab misbehavi neighb "
    "od parl ranc rum sav splend tum unfav val vap vig"
)
ISE = (
    "agon apolog author capital categor character civil colon critic custom emphas equal final general global harmon "
    "hospital immun initial ital jeopard legal local material maxim mechan memor minim mobil modern monopol national "
    "neutral normal optim organ penal personal popular priorit privat quant real recogn reorgan satir scrutin serial "
    "special stabil standard steril subsid summar symbol sympath synchron theor token util visual"
)
ENDINGS = (
    ("our", "or", OUR, r"\w*"),
    ("is", "iz", ISE, r"(?:e|es|ed|er|ers|ing|ation|ations|able)"),
    ("ys", "yz", "anal catal paral", r"(?:e|es|ed|er|ers|ing)"),
    ("re", "er", "cent theat met lit fib somb spect calib kilomet centimet millimet", "s?"),
    ("red", "ered", "cent", ""),
    ("ll", "l", "cance counse due fue jewe labe leve mode pane quarre riva signa trave tunne", "(?:ed|ing|ers?|ist)"),
    ("logue", "log", "ana cata dia epi mono pro", "s?"),
    ("ence", "ense", "def lic off pret", "s?"),
    ("ey", "ay", "gr", r"(?:s|er|ish)?"),
    ("rnt", "rned", "bu lea", ""),
    ("elt", "elled", "sp", ""),
    ("eamt", "eamed", "dr", ""),
    ("lst", "le", "whi", ""),
    ("amme", "am", "progr", "s?"),
    ("ould", "old", "m sm", r"\w*"),
    ("ae", "e", "an arch encyclop h p", r"[dmosth]\w+"),
    ("lful", "llful", "ski wi", r"\w*"),
    ("fil", "fill", "ful", "(?:s|ment)?"),
    ("yre", "ire", "t", "s?"),
    ("eque", "eck", "ch", "s?"),
    ("ough", "ow", "pl", r"\w*"),
    ("gement", "gment", "acknowled jud", "s?"),
    ("wards", "ward", "after back down for to up", ""),
    ("minium", "minum", "alu", ""),
    ("ceptic", "keptic", "s", r"\w*"),
    ("ellery", "elry", "jew", ""),
    ("oustache", "ustache", "m", "s?"),
    ("yjamas", "ajamas", "p", ""),
    ("osy", "ozy", "c", ""),
    ("anoeuv", "aneuv", "m", r"\w*"),
    ("neuvre", "neuver", "ma", "s?"),
)  # fmt: skip


SPELLINGS = [
    (re.compile(rf"({stems.replace(' ', '|')}){british}({rest})"), american)
    for british, american, stems, rest in ENDINGS
]


@lru_cache(1 << 16)
def _american(word: str) -> str:
    for pattern, ending in SPELLINGS:
        if match := pattern.fullmatch(word):
            word = f"{match[1]}{ending}{match[2]}"
    return word


# --- numbers and amounts ---------------------------------------------------------------------------------------------

DECIMAL_POINT = re.compile(r"(?<=\d)\.(?=\d)")
MONEY = {"$": ("dollar", "dollars", "cents"), "£": ("pound", "pounds", "pence"), "€": ("euro", "euros", "cents")}
MONEY |= {"¥": ("yen", "yen", "sen"), "₹": ("rupee", "rupees", "paise")}
AMOUNT = rf"(\d+(?:\.\d+)?)(?:\s+({'|'.join(SCALES)})\b)?"
BEFORE = re.compile(rf"([$£€¥₹]){AMOUNT}")
AFTER = re.compile(rf"{AMOUNT}\s?([$£€¥₹])")
SYMBOLS = [
    (re.compile(pattern), words)
    for pattern, words in (
        (r"(?<=\d),(?=\d{3}(?!\d))", ""),
        (r"(?<![\d.])\.(?=\d)", "0."),
        (r"(?<!\S)[-−](?=\d)", "minus "),
        (r"%", " percent"),
        (r"\bper cent\b", "percent"),
        (r"&", " and "),
        (r"@", " at "),
        (r"(?<=\d)\s?¢", " cents"),
        (r"(?<=\d)\s?°(?:\s?([cf])\b)?", r" degrees \1"),
        (r"#(?=\d)", "number "),
    )
]


def _spell_symbols(text: str) -> str:
    for pattern, words in SYMBOLS:
        text = pattern.sub(words, text)
    text = BEFORE.sub(lambda match: _money(match[1], match[2], match[3]), text)
    return AFTER.sub(lambda match: _money(match[3], match[1], match[2]), text)


def _money(sign: str, amount: str, scale: str | None) -> str:
    """An amount in words: 5 dollars and 50 cents."""
    singular, plural, part = MONEY[sign]
    if scale:
        return f"{amount} {scale} {plural}"
    whole, _, fraction = amount.partition(".")
    if len(fraction) != 2:
        return f"{amount} {singular if amount == '1' else plural}"
    unit = singular if whole == "1" else plural
    if not int(fraction):
        return f"{whole} {unit}"
    return f"{int(fraction)} {part}" if not int(whole) else f"{whole} {unit} and {int(fraction)} {part}"
