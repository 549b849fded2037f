"""Rules about tokens: settings, errors, and filters beside those of transformers."""

import pytest
import torch
import transformers as hf
from helpers import generation
from test_generation import context

from regard.config.decode import Seq2SeqDecode
from regard.decode import Beam, Greedy, SearchRequest, TokenRules
from regard.decode.search.filters import NO_TOKEN, MinTokens, NoRepeatNgram, StepContext, SuppressAt
from regard.decode.search.token_rules import token_table
from regard.tasks.language.settings import LanguageDecode

START, END = generation.START, generation.END


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("ragged", [False, True])
def test_no_repeat_ngram_equals_transformers(size, ragged):
    draw = torch.Generator().manual_seed(size)
    prompts = [torch.randint(0, 5, (count,), generator=draw).tolist() for count in (1, 4, 9)]
    table, rows = token_table(prompts, torch.device("cpu"), left=True), [2, 0, 1]
    tokens = torch.randint(0, 5, (3, 2, 6), generator=draw)
    steps = torch.tensor([6, 2, 4]) if ragged else None
    here = StepContext(6, torch.ones(3), tokens, torch.tensor(rows), steps)
    scores = torch.randn(3, 2, 5, generator=draw)
    found = NoRepeatNgram(size, table)(scores, here)
    theirs, seen = hf.NoRepeatNGramLogitsProcessor(size), 0
    for i, row in enumerate(rows):
        for j in range(2):
            own = tokens[i, j, : int(steps[i])] if ragged else tokens[i, j]
            ids = torch.cat([torch.tensor(prompts[row]), own])[None]
            assert torch.equal(found[i, j], theirs(ids, scores[i, j][None])[0])
            seen += int(found[i, j].isinf().sum())
    assert seen


def test_source_ngrams_equal_transformers():
    sources = [[7, 8, 9, 7, 8, 5], [9, 9, 8]]
    table = token_table(sources, torch.device("cpu"), left=False)
    prompt, tokens = torch.tensor([[1], [1]]), torch.tensor([[[4, 7], [9, 9]], [[9, 9], [2, 3]]])
    for size in (1, 2, 3):
        scores = torch.zeros(2, 2, 10)
        found = NoRepeatNgram(size, prompt, table)(scores, context(tokens, [0, 1]))
        for row in range(2):
            theirs = hf.EncoderNoRepeatNGramLogitsProcessor(size, torch.tensor([sources[row]]))
            ids = torch.cat([prompt[row].expand(2, 1), tokens[row]], 1)
            assert torch.equal(found[row], theirs(ids, torch.zeros(2, 10)))


def test_filters_of_some_rows():
    """Each row has its own count of tokens, and its own minimum."""
    least, steps = torch.tensor([3, 0, 5]), torch.tensor([2, 4])
    here = StepContext(4, torch.ones(2), torch.zeros(2, 1, 4), torch.tensor([0, 2]), steps, steps)
    assert (
        MinTokens((1, 3), least)(torch.zeros(2, 1, 5), here).isinf().tolist()
        == [[[False, True, False, True, False]]] * 2
    )
    done = StepContext(3, torch.ones(2), torch.zeros(2, 1, 3), torch.tensor([0, 1]))
    assert not MinTokens((1, 3), least)(torch.zeros(2, 1, 5), done).isinf().any()
    found = SuppressAt((2,), torch.tensor([2, 0, 0]))(torch.zeros(2, 1, 5), here)
    assert found.isinf().tolist() == [[[False, False, True, False, False]], [[False] * 5]]
    assert token_table([[1], [1, 2]], torch.device("cpu"), left=True).tolist() == [[NO_TOKEN, 1], [1, 2]]


@pytest.mark.parametrize(
    "strategy", [Greedy(), Beam(3), Beam(3, early_stopping="never"), Beam(4, 4, early_stopping="first")]
)
def test_several_ends(strategy):
    """A text ends at each of these tokens; END of the tokenizer is an ordinary token if it is not among them."""
    model = generation.build("gpt")
    free = [
        alone for first in (4, 5, 6) for alone in generation.alone(model, SearchRequest((START, first), max_tokens=9))
    ]
    ends, ended = tuple({token for each in free for token in each.tokens[1:3]}), 0
    for first in range(4, 20):
        request = SearchRequest((START, first), strategy=strategy, max_tokens=30, rules=TokenRules(eos_token_id=ends))
        for found in generation.alone(model, request):
            assert not set(ends) & set(found.tokens)
            assert found.ended or len(found.tokens) == 30
            ended += found.ended
    assert ended > 10


def test_beams_penalize_log_probabilities():
    """As in transformers. Greedy search penalizes logits, so that a beam of one may differ from it."""
    model = generation.build("gpt")
    single, rules = Beam(1, early_stopping="heuristic"), TokenRules(suppress_tokens=(END,))
    different = 0
    for first in range(4, 30):
        a, b = (
            generation.alone(
                model, SearchRequest((START, first), None, strategy, 12, repetition_penalty=1.6, rules=rules)
            )[0].tokens
            for strategy in (Greedy(), single)
        )
        different += a != b
    assert different


def test_refused_requests():
    phrase = generation.TOKENIZER.encode("", ("abc",), ())
    with pytest.raises(ValueError, match="stop strings and required phrases cannot be combined; give one of the two"):
        SearchRequest((START,), generation.source([5, END]), Beam(2), constraints=phrase, stop=("x",))
    with pytest.raises(ValueError, match="encoder_no_repeat_ngram_size needs a source of tokens; set it to 0"):
        SearchRequest((START,), rules=TokenRules(encoder_no_repeat_ngram_size=2))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"min_tokens": 9, "max_tokens": 5}, "decode.min_tokens is 9, above decode.max_tokens=5; lower it"),
        ({"rules": {"forced_bos_token_id": [4, 5]}}, "it has 2 tokens; expected one, with which every output begins"),
        ({"rules": {"bad_words_ids": [[4], []]}}, "it has an empty sequence; expected lists of token numbers"),
        ({"rules": {"suppress_tokens": [-1]}}, "greater than or equal to 0"),
    ],
)
def test_refused_settings(settings, words):
    for section in (LanguageDecode, Seq2SeqDecode):
        with pytest.raises(ValueError, match=words):
            section(**settings)


def test_settings_of_rules():
    given = {"suppress_tokens": 7, "forced_eos_token_id": None, "bad_words_ids": [3, [4, 5]], "eos_token_id": [1, 2]}
    rules = Seq2SeqDecode(rules=given).rules
    assert (rules.suppress_tokens, rules.forced_eos_token_id, rules.bad_words_ids) == ((7,), (), ((3,), (4, 5)))
    assert rules.largest_ids() == {"suppress_tokens": 7, "bad_words_ids": 5, "eos_token_id": 2}
    assert TokenRules.of(LanguageDecode().rules) == TokenRules()
