"""Word and character error rates, with jiwer as the oracle, and the normalizers of transcripts by hand."""

import random
import sys

import jiwer
import pytest
from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

from regard.errors import UserError
from regard.metrics.normalize_speech import NORMALIZERS, normalize_basic, normalize_english
from regard.metrics.speech import paired_error_bootstrap, speech_metrics
from regard.metrics.spoken_numbers import CARDINALS, ORDINALS, SCALES, SMALL_WORDS, TENS_WORDS


def test_counts_by_hand() -> None:
    found = ["the cat sat", "a  dog", "no words here"]
    references = ["the cat sat down", "the dog", "no words here"]
    metrics = speech_metrics(found, references)
    assert metrics == {
        "wer": 2 / 9,
        "cer": pytest.approx(8 / 36),  # " down"; "a" for "the"
        "exact": 1 / 3,
        "words": 9,
        "substitutions": 1,
        "insertions": 0,
        "deletions": 1,
        "characters": 36,
        "character_substitutions": 1,
        "character_insertions": 0,
        "character_deletions": 7,
        "normalize": "none",
    }


def test_the_counts_are_those_of_jiwer() -> None:
    rng = random.Random(3)
    words = ["a", "an", "the", "cat", "cats", "sat", "sad", "on", "mat"]
    texts = [[" ".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(60)] for _ in range(2)]
    metrics = speech_metrics(texts[0], texts[1])
    by_word, by_character = jiwer.process_words(texts[1], texts[0]), jiwer.process_characters(texts[1], texts[0])
    assert metrics["wer"] == by_word.wer and metrics["cer"] == by_character.cer
    for edit in ("substitutions", "insertions", "deletions"):
        assert metrics[edit] == getattr(by_word, edit)
        assert metrics[f"character_{edit}"] == getattr(by_character, edit)
    assert metrics["words"] == sum(len(text.split()) for text in texts[1])
    assert metrics["characters"] == sum(map(len, texts[1]))


def test_empty_references_and_transcripts() -> None:
    metrics = speech_metrics(["two words", "", ""], ["", "one", " \n"])
    assert (metrics["wer"], metrics["words"], metrics["insertions"], metrics["deletions"]) == (3.0, 1, 2, 1)
    assert (metrics["character_insertions"], metrics["character_deletions"], metrics["exact"]) == (9, 3, 1 / 3)
    nothing = speech_metrics([], [])
    assert (nothing["wer"], nothing["cer"], nothing["exact"], nothing["words"]) == (0.0, 0.0, 0.0, 0)
    silent = speech_metrics(["", "so much noise"], ["", ""])
    assert (silent["wer"], silent["words"], silent["insertions"], silent["exact"]) == (3.0, 0, 3, 0.5)
    assert speech_metrics([""], ["?!"], "basic")["exact"] == 1.0
    with pytest.raises(ValueError):
        speech_metrics(["a"], [])


def test_normalization_of_both_sides_is_named() -> None:
    metrics = speech_metrics(["it is 21 o'clock"], ["It’s twenty-one o'clock."], "english")
    assert (metrics["wer"], metrics["exact"], metrics["normalize"]) == (0.0, 1.0, "english")
    assert speech_metrics(["IT'S LATE"], ["it’s late!"], "basic")["wer"] == 0.0
    assert speech_metrics(["IT'S LATE"], ["it’s late!"])["wer"] == 1.0


def test_jiwer_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jiwer", None)
    with pytest.raises(UserError, match=r"WER and CER need jiwer; install it with: pip install 'regard\[audio\]'"):
        speech_metrics(["a"], ["a"])


# --- normalizers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("  Hello,   WORLD!\n", "hello world"),
        ("Don’t STOP—it’s “1.5 km”!", "don't stop it's 1 5 km"),
        ("'tis the dogs' rock'n'roll", "tis the dogs rock'n'roll"),
        ("ＦＵＬＬ ｗｉｄｔｈ ﬁne", "full width fine"),
        ("नमस्ते, दुनिया!", "नमस्ते दुनिया"),  # marks belong to the letters
        ("Straße; Cafe\u0301 €5 + a_b", "straße café 5 a b"),
        ("你好，世界。", "你好 世界"),
        ("?!", ""),
    ],
)
def test_basic(text: str, wanted: str) -> None:
    assert normalize_basic(text) == wanted
    assert NORMALIZERS["none"](text) == text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("I won't, can't, shan't or don't!", "i will not can not shall not or do not"),
        ("It's what they're, we've, I'll, I'd, I'm", "it is what they are we have i will i would i am"),
        ("Let's; y'all ain't 'cause John's here's", "let us you all aint because johns here is"),
        ("Um, well, uh... hmm, okay", "well ok"),
        ("Mr. Smith, Mrs. Jones, Dr. No vs. St. Paul", "mister smith missus jones doctor no versus saint paul"),
        ("I'm gonna and cannot", "i am going to and can not"),
        ("col" "our neighb" "ours trav" "elled cent" "re gr" "ey", "color neighbors traveled center gray"),
        ("organ" "ised real" "isation anal" "yse def" "ence program" "mes", "organized realization analyze defense programs"),
        ("hour our promise wise tour there more fiber", "hour our promise wise tour there more fiber"),
    ],
)  # fmt: skip
def test_english_words(text: str, wanted: str) -> None:
    assert normalize_english(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("twenty one, Twenty-One", "21 21"),
        ("first twenty-first hundredth 1st", "1st 21st 100th 1st"),
        ("second third eleventh twelfth thirteenth thirtieth", "2nd 3rd 11th 12th 13th 30th"),
        ("one two three", "1 2 3"),
        ("one hundred and five and six", "105 and 6"),
        ("a hundred or a thousand two hundred", "100 or 1200"),
        ("two thousand and one", "2001"),
        ("nineteen eighty-four twenty twenty one nineteen twenties the sixties", "1984 2021 1920s the 60s"),
        ("nineteen ten nineteen nine fifteen people", "1910 19 9 15 people"),
        ("one million two hundred thousand and fifty six", "1200056"),
        ("between one hundred and two hundred", "between 100 and 200"),
        ("three million or two million three thousand", "3000000 or 2003000"),
        ("twenty five hundred one hundred and two thousand", "2500 102000"),
        ("three point one four", "3.14"),
        ("two point five million is 2.5 million is 2,500,000", "2500000 is 2500000 is 2500000"),
        ("seven point of order", "7 point of order"),
        ("3 hundred and 5 million", "300 and 5000000"),
        ("million hundred zero", "1000000 100 0"),
        ("007 3.50 .5 -5 #3", "007 3.50 0.5 minus 5 number 3"),
        ("12:30 twelve thirty", "12 30 12 30"),
        ("an apple and a pear", "an apple and a pear"),
    ],
)
def test_english_numbers(text: str, wanted: str) -> None:
    assert normalize_english(text) == wanted


@pytest.mark.parametrize(
    ("sign", "spoken"),
    [
        ("$5.50", "five dollars and fifty cents"),
        ("$1", "one dollar"),
        ("$20.00", "twenty dollars"),
        ("$0.99", "ninety nine cents"),
        ("$1.05", "one dollar and five cents"),
        ("$3 million", "three million dollars"),
        ("£2, 5€ and 10 ¢", "two pounds, five euros and ten cents"),
        ("20% & 30 per cent", "twenty percent and thirty percent"),
        ("5°C @ 1,000 m", "five degrees C at one thousand m"),
        ("£1.5", "one point five pounds"),
    ],
)
def test_english_symbols_are_read_as_people_say_them(sign: str, spoken: str) -> None:
    assert normalize_english(sign) == normalize_english(spoken)


def in_words(number: int, rng: random.Random) -> str:
    if number < 100:
        tens, unit = divmod(number, 10)
        words = f"{TENS_WORDS.split()[tens - 2]}-{SMALL_WORDS.split()[unit]}" if number > 19 and unit else ""
        return words or (SMALL_WORDS.split()[number] if number < 20 else TENS_WORDS.split()[tens - 2])
    scale = max(each for each in (100, *SCALES.values()) if each <= number)
    name = next((word for word, value in SCALES.items() if value == scale), "hundred")
    whole, rest = divmod(number, scale)
    link = " and " if rest < 100 and rng.random() < 0.5 else " "
    return f"{in_words(whole, rng)} {name}{link + in_words(rest, rng) if rest else ''}"


def test_every_number_in_words_becomes_its_digits() -> None:
    rng = random.Random(4)
    for _ in range(500):
        number = rng.randrange(10 ** rng.randint(1, 13))
        words = in_words(number, rng)
        assert normalize_english(words) == str(number), words


def test_normalizing_again_changes_nothing() -> None:
    rng = random.Random(5)
    words = [
        *CARDINALS,
        *ORDINALS,
        "and",
        "a",
        "point",
        "5",
        "2.5",
        "1,000",
        "$3.20",
        "20%",
        "it's",
        "1.5.3",
        "3:30",
        "0",
    ]
    for _ in range(500):
        text = normalize_english(" ".join(rng.choices(words, k=rng.randint(1, 7))))
        assert normalize_english(text) == text and normalize_basic(text) == normalize_basic(normalize_basic(text))


def test_paired_bootstrap_of_the_word_error_rate() -> None:
    """The score is the WER of all examples, also where their lengths differ."""
    references = ["a b c d e f g h", "a", "b c", ""] * 10
    good, bad = [text.upper() for text in references], ["x"] * 40
    signatures, (same, other, worse) = paired_error_bootstrap([good, good, bad], references, "basic")
    assert same["wer"]["score"] == other["wer"]["score"] == 0 and same["wer"]["p"] is None and other["wer"]["p"] == 1
    assert worse["wer"]["score"] == pytest.approx(100 * speech_metrics(bad, references, "basic")["wer"])
    assert worse["wer"]["p"] < 0.01 and worse["wer"]["interval"] > 0
    assert signatures == {"wer": "percent|examples:40|bootstrap:1000|seed:12345"}


# --- Whisper's normalizer --------------------------------------------------------------------------------------------

BRITISH = {
    "col" "our": "color", "organ" "ised": "organized", "trav" "elling": "traveling", "cent" "re": "center",
    "defen" "ce": "defense", "catal" "ogue": "catalog", "g" "rey": "gray", "jew" "ellery": "jewelry", "a" "naemia": "anemia",
    "hon" "ourable": "honorable", "anal" "yse": "analyze", "man" "oeuvre": "maneuver", "ty" "res": "tires", "progr" "amme": "program",
}  # fmt: skip
SAID = """
Mr. Smith's got $2.50; Mrs. Jones hasn't.|It's one hundred and twenty-three thousand, four hundred and five.
He'd been to St. Paul's on May 21st, nineteen eighty-four.|They owe 20 million dollars and seven cents.
Call one eight hundred five five five, oh one two three!|It was two and a half per cent, not 3.5 percent.
[music] Um, I'ma go (laughs) 'cause y'all won't, can't, shan't.|The 1960s: twenties, thirties, the second, third and ninth.
Naïve cafés in Øresund, Straße 7b, №5, 10:30 a.m.|minus five degrees, plus ten, negative one, positive ones
Double oh seven met triple nine at ten point one oh.|£0.05 and €3 and ¢7, $1,000,000.00, 5%|a hundredth, two thousandths, 3 million
Dr. No, Prof. X, Gov. Y, Rep. Z, Lt. Col. A jr., esq.|I'm gonna, you're, we've, they'll, he's done, she'd gone|one and a half and a half
"""
SPOKEN = """one two five ten twelve twenty forty hundred thousand million first third ninths nineth twentieth hundredth thousands
oh o zero point and double triple minus plus percent per cent dollars pounds cents euro a half and-a-half the cat 3 20 2.5 007 5.0 $5
£3.50 €0.07 7% 1960s 21st x2 won't it's ain't (so) o'clock mr. st u.s. café - ."""


def test_whisper_english_is_that_of_transformers() -> None:
    """On sentences with numbers, money, ordinals, contractions, titles and British words, and on 600 word salads."""
    oracle, rng = EnglishTextNormalizer(BRITISH), random.Random(1)
    words = [*SPOKEN.split(), *BRITISH]
    texts = [*SAID.replace("\n", "|").split("|"), *BRITISH]
    texts += [" ".join(rng.choices(words, k=rng.randint(1, 9))).replace("-a-", " a ") for _ in range(600)]
    differ = [
        (text, oracle(text).strip()) for text in texts if NORMALIZERS["whisper-english"](text) != oracle(text).strip()
    ]
    assert not differ
    plain = "wise exercise realism tours our advertiser cosine capitalist promise literal"  # no British spelling
    assert NORMALIZERS["whisper-english"](plain) == plain
