"""Detokenization of vocabularies that cut characters into bytes: batch decoding, streaming and their cost."""

import io
import random

import pytest
import sentencepiece
from helpers import causal
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard.config.data.texts import TokenizerConfig
from regard.decode.search.texts import IncrementalDetokenizer, added_text, cut_at_stop, without_incomplete
from regard.errors import UserError
from regard.processors.text.external import FolderTokenizer, MarianTokenizer, sentencepiece_processor
from regard.processors.text.tokenizers import TrainedTokenizer, train_tokenizer

TEXTS = [
    "the old cat 漢字",
    "Käse 🧀 the rest.",
    "👩‍👩‍👧 naïve\n\n the",
    " two  spaces ",
    "\ufffd the \ufffd",
    "日本語の文",
    "▁ the ▁",
]
LETTERS = "the or . ▁äß漢字日🧀👧\u200d\ufffd\n"
KINDS = (
    "llama",
    "unigram fallback",
    "adopted fallback",
    "byte level",
    "marian",
    "bpe",
    "unigram",
    "wordpiece",
    "char",
    "word",
)


def folder_tokenizer(kind):
    backend = (
        causal.byte_level(300, "<s>", "</s>") if kind == "byte level" else causal.byte_fallback(kind, "<s>", "</s>")
    )
    return FolderTokenizer(backend, 1, 0, 1, 1)


def marian_tokenizer():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the old cat sees the rest"] * 20), model_writer=model, vocab_size=290, byte_fallback=True,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    spm = sentencepiece_processor(model_proto=model.getvalue())
    vocab = {spm.id_to_piece(number): number for number in range(spm.get_piece_size())}
    return MarianTokenizer(spm, spm, vocab | {"<pad>": len(vocab)}, {"pad": len(vocab), "start": 1, "end": 2, "unk": 0})


def tokenizer_of(kind):
    if kind == "marian":
        return marian_tokenizer()
    if kind == "adopted fallback":
        return TrainedTokenizer(causal.byte_fallback("bpe", "<pad>", "<s>", "</s>"))
    if kind in ("llama", "unigram fallback", "byte level"):
        return folder_tokenizer({"llama": "bpe", "unigram fallback": "unigram"}.get(kind, kind))
    return train_tokenizer(
        TokenizerConfig(kind=kind, vocab=320 if kind in ("bpe", "unigram") else 60), [*TEXTS, LETTERS]
    )


TOKENIZERS = {kind: tokenizer_of(kind) for kind in KINDS}


def final_text(tokenizer, prompt, tokens):
    """What `predict` returns."""
    return without_incomplete(added_text(tokenizer.decode, prompt, tokens), tokenizer, tokens)


def streamed(tokenizer, prompt, tokens, stops=()):
    detokenizer = IncrementalDetokenizer(tokenizer.decode, prompt, stops)
    parts = [detokenizer.add(token) for token in tokens]
    assert sum(map(len, parts)) == detokenizer.emitted
    return parts


def random_bytes(tokenizer, dice):
    """Tokens of texts and of random bytes, among them cut characters."""
    text = "".join(dice.choices(LETTERS, k=dice.randint(0, 12)))
    ids = tokenizer.encode([text])[0]
    cut = ids[: dice.randint(0, len(ids))]
    return [*cut, *(dice.randrange(3, tokenizer.size) for _ in range(dice.choice([0, 0, 1, 5, 30]))), *ids]


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_stream_are_the_text(kind):
    """For any tokens, also bytes that form no character: the parts joined are a prefix of the text, to which only a held
    end is missing; no part holds U+FFFD for a character that a later token completes.
    """
    tokenizer, dice = TOKENIZERS[kind], random.Random(kind)
    for _ in range(60):
        prompt = [tokenizer.start, *tokenizer.encode(["".join(dice.choices(LETTERS, k=dice.randint(0, 9)))])[0]]
        tokens = random_bytes(tokenizer, dice)
        whole, emitted = final_text(tokenizer, prompt, tokens), "".join(streamed(tokenizer, prompt, tokens))
        assert whole in (emitted, emitted + "\ufffd"), (prompt, tokens)
        stops = tuple({whole[i : i + 2] for i in (1, 5)} - {"", whole[:1]})
        wanted, stopped = cut_at_stop(whole, stops)
        found = "".join(streamed(tokenizer, prompt, tokens, stops))
        assert wanted.startswith(found) and (found == wanted or not stopped)


@pytest.mark.parametrize("kind", KINDS)
def test_one_text_is_no_list_of_texts(kind):
    """A str is a sequence of characters: each of them would be encoded as a text."""
    with pytest.raises(UserError, match=r"the texts to encode are one str, 'abc'; give a list of texts"):
        TOKENIZERS[kind].encode("abc")
    assert TOKENIZERS[kind].encode(("abc",)) == TOKENIZERS[kind].encode(["abc"])


@pytest.mark.parametrize("kind", KINDS[:6])
@given(st.text(st.sampled_from(LETTERS) | st.characters(exclude_categories=["Cs", "Cc"]), max_size=20))
@settings(max_examples=20, deadline=None)
def test_characters_are_whole(kind, text):
    """Wherever the prompt ends on a character border, its text and the stream after it are the whole text."""
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode([text])[0]
    whole = tokenizer.decode([ids])[0]
    for first in range(len(ids) + 1):
        before = tokenizer.decode([ids[:first]])[0]
        parts = streamed(tokenizer, ids[:first], ids[first:])
        assert kind == "marian" or "\ufffd" in text or not any("\ufffd" in part for part in parts)
        if without_incomplete(before, tokenizer, ids[:first]) == before:
            rest = final_text(tokenizer, ids[:first], ids[first:])
            assert before + rest == whole and rest.startswith("".join(parts))
            assert "\ufffd" in text or kind == "marian" or "".join(parts) == rest


@pytest.mark.parametrize("kind", ["llama", "unigram fallback", "adopted fallback", "marian"])
def test_a_cut_character_does_not_spoil_those_before(kind):
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(["漢字"])[0]
    for cut, text in ((1, "漢字"), (2, "漢"), (4, "漢"), (5, ""), (6, "")):
        kept = ids if cut == 1 else ids[: len(ids) - cut + 1]
        assert final_text(tokenizer, [tokenizer.start], kept) == text
    the = tokenizer.encode(["the"])[0]
    assert final_text(tokenizer, [tokenizer.start], [*ids[:-1], *the]) == "漢\ufffd the"
    lone = [token for token in ids if tokenizer.tokens([token]) == ["<bc>"]][:1]
    assert tokenizer.decode([lone * 3])[0] == "\ufffd" * 3 and final_text(tokenizer, [], lone * 3) == "\ufffd" * 3


def test_a_real_replacement_character_stays():
    for kind in ("llama", "byte level", "bpe"):
        tokenizer = TOKENIZERS[kind]
        ids = tokenizer.encode(["a\ufffd"])[0]
        assert final_text(tokenizer, [tokenizer.start], ids) == "a\ufffd"


@pytest.mark.parametrize("kind", ["llama", "byte level", "wordpiece"])
@pytest.mark.parametrize("stops", [(), ("never", "漢"), ("\ufffd" * 50,)])
def test_the_cost_of_a_token_does_not_grow(kind, stops):
    tokenizer, dice = TOKENIZERS[kind], random.Random(3)
    read = [0]

    def decode(rows):
        read[0] += sum(map(len, rows))
        return tokenizer.decode(rows)

    tokens = [dice.randrange(3, tokenizer.size) for _ in range(1000)]
    for some in (tokens, [dice.choice(tokens[:20])] * 1000):
        read[0] = 0
        detokenizer = IncrementalDetokenizer(decode, tokens, stops)
        for token in some:
            detokenizer.add(token)
            assert len(detokenizer.held) <= 50
        assert read[0] <= 20 * len(some)


@pytest.mark.parametrize("fallback", [True, False])
def test_streams_of_a_folder(fallback, tmp_path):
    """stream = predict for a model that writes bytes, at every limit, with and without stop strings."""
    path, _ = causal.llama(tmp_path / "llama", fallback=fallback)
    predictor = regard.load(path, {"decode.kind": "sample", "decode.top_k": 0})
    prompts = ["漢字 the", "🧀🧀🧀", "", "the rest of 日本"]
    texts = {}
    for prompt in prompts:
        for limit in (1, 2, 3, 7, 40):
            texts[prompt, limit] = whole = predictor.predict(prompt, max_tokens=limit)
            parts = list(predictor.stream(prompt, max_tokens=limit))
            assert "".join(parts) == whole and all(parts)
        stop = whole[len(whole) // 2 :][:2]
        stopped = predictor.predict(prompt, max_tokens=40, stop=[stop])
        assert "".join(predictor.stream(prompt, max_tokens=40, stop=[stop])) == stopped == whole[: whole.index(stop)]
    assert len(set(texts.values())) > 12
