"""BLEU and TER of any language: the tokenizer follows the script of the references and equals sacrebleu's own."""

import json
import shutil
import types

import pytest
import sacrebleu
from helpers import small
from helpers.runs import tiny_run

import regard
from regard.api import compare
from regard.cli import main
from regard.config.task_settings import TextEval
from regard.errors import UserError
from regard.metrics import tokenization
from regard.metrics.text import paired_bootstrap, signature, text_metrics
from regard.metrics.tokenization import Tokenization, choose_tokenization, script_of
from regard.tasks.text2text.task import MetricsByTask, task_metrics

TEXTS = {
    "zh": ["我们用 PyTorch 训练 Transformer 模型。", "今天天气很好。", "の字在商標裡很常見，漢字佔絕大多數，這是中文。"],
    "ja": ["東京都庁前でデモが行われた。", "カタカナ語", "今日は天気がいいです。"],
    "ko": ["오늘은 날씨가 좋습니다.", "서울特別市에서 Transformer 모델을 학습했다."],
    "unspaced": ["วันนี้อากาศดีมาก", "ມື້ນີ້ອາກາດດີ", "ថ្ងៃនេះអាកាសធាតុល្អ", "ဒီနေ့ ရာသီဥတု ကောင်းတယ်", "དེ་རིང་གནམ་གཤིས་ཡག་པོ་འདུག"],
    "spaced": ["The word 你好 means hello.", "Das ist gut.", "Сегодня хорошо.", "आज मौसम अच्छा है", "اليوم جميل", "12:30", ""],
}  # fmt: skip
TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab", "unspaced": "char", "spaced": "13a"}


@pytest.mark.parametrize("script", TEXTS)
def test_the_script_of_most_of_the_text_decides(script):
    assert [script_of([text]) for text in TEXTS[script]] == [script] * len(TEXTS[script])
    few = [text for other, texts in TEXTS.items() if other != script for text in texts[:1]]
    assert script_of([*TEXTS[script] * 20, *few]) == script


def test_no_text_is_spaced():
    assert script_of([]) == script_of(["", "…"]) == "spaced" and choose_tokenization([]) == Tokenization()


@pytest.mark.parametrize("script", TEXTS)
def test_scores_equal_sacrebleu_with_the_tokenizer_of_the_script(script):
    right = [text for text in TEXTS[script] if text]
    found = [text[:-2] + text[-1] for text in right]  # one letter is missing
    asian = script in ("zh", "ja")
    scores = text_metrics(found, [[text] for text in right], ("bleu", "chrf", "ter", "exact"))
    assert scores["bleu"] == sacrebleu.corpus_bleu(found, [right], tokenize=TOKENIZERS[script]).score > 0
    assert scores["ter"] == sacrebleu.corpus_ter(found, [right], normalized=asian, asian_support=asian).score
    assert scores["chrf"] == sacrebleu.corpus_chrf(found, [right]).score and scores["exact"] == 0
    names = {name: signature(name, [[text] for text in right]) for name in ("bleu", "ter", "chrf")}
    assert f"|tok:{TOKENIZERS[script]}" in names["bleu"] and f"|asian:{'yes' if asian else 'no'}|" in names["ter"]
    assert f"|norm:{'yes' if asian else 'no'}|" in names["ter"] and "tok" not in names["chrf"]


def test_chinese_is_no_longer_scored_as_long_words():
    right, found = TEXTS["zh"], [text.replace("天气", "气候") for text in TEXTS["zh"]]
    assert sacrebleu.corpus_bleu(found[1:2], [right[1:2]], tokenize="13a").score == 0
    assert text_metrics(found, [[text] for text in right], ("bleu",))["bleu"] > 80


@pytest.mark.parametrize("name", ["13a", "intl", "zh", "char", "none", "ja-mecab", "ko-mecab"])
def test_a_given_tokenizer_wins_over_the_script(name):
    right, found = TEXTS["zh"], [text[:-2] + text[-1] for text in TEXTS["zh"]]
    chosen = choose_tokenization([[text] for text in right], TextEval(tokenize=name))
    assert chosen == Tokenization(name, asian_support=True)
    score = text_metrics(found, [[text] for text in right], ("bleu",), chosen)["bleu"]
    assert score == sacrebleu.corpus_bleu(found, [right], tokenize=name).score


def test_asian_support_is_by_script_on_or_off():
    chinese, english = [[text] for text in TEXTS["zh"]], [["Today is a day."]]
    for setting, wanted in {"auto": (True, False), "on": (True, True), "off": (False, False)}.items():
        settings = TextEval(asian_support=setting)
        assert tuple(choose_tokenization(each, settings).asian_support for each in (chinese, english)) == wanted


def test_the_bootstrap_uses_the_tokenizer():
    right = TEXTS["zh"] * 3
    outputs = [[text[:-2] + text[-1] for text in right], right]
    signatures, results = paired_bootstrap(outputs, [[text] for text in right])
    assert "tok:zh" in signatures["bleu"] and "asian:yes" in signatures["ter"]
    assert results[0]["bleu"]["score"] == sacrebleu.corpus_bleu(outputs[0], [right], tokenize="zh").score
    assert results[1]["bleu"]["score"] == pytest.approx(100)


def test_each_task_of_a_mixture_has_the_tokenizer_of_its_language():
    run = types.SimpleNamespace(eval=TextEval())
    whole, chinese = "nrefs:1|case:mixed|eff:no|tok:13a", TEXTS["zh"]
    own = task_metrics(run, chinese, [[text] for text in chinese], whole)
    assert own["bleu"] == pytest.approx(100) and own["exact"] == 1 and "|tok:zh|" in own["bleu_signature"]
    assert f"bleu 100.0000  chrf 100.0000  exact 1.0000  bleu_signature {own['bleu_signature']}" in str(
        MetricsByTask(zh=own)
    )
    same = task_metrics(run, chinese, [[text] for text in chinese], own["bleu_signature"])
    assert set(same) == {"bleu", "chrf", "exact"}


# --- missing packages and files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("script, language", [("ja", "Japanese"), ("ko", "Korean")])
def test_characters_replace_words_where_the_packages_are_missing(monkeypatch, script, language):
    monkeypatch.setattr(tokenization, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match=f"are {language}, and BLEU counts characters .*pip install 'regard.asian.'"):
        assert choose_tokenization([TEXTS[script]]).bleu == "char"
    name = TOKENIZERS[script]
    with pytest.raises(UserError, match=f"eval.tokenize is {name}, whose packages are not installed; install them"):
        choose_tokenization([TEXTS[script]], TextEval(tokenize=name))


@pytest.mark.parametrize("name", ["spm", "flores101", "flores200"])
def test_sentencepiece_models_are_never_downloaded(monkeypatch, tmp_path, name):
    from sacrebleu import utils
    from sacrebleu.tokenizers import tokenizer_spm

    monkeypatch.setattr(utils, "SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr(tokenizer_spm, "download_file", None)
    settings, references = TextEval(tokenize=name), [["a dog runs."], ["the cat."]]
    with pytest.raises(UserError, match=f"{name}, whose model is not in the cache of sacrebleu; download https.* to /"):
        choose_tokenization(references, settings)
    path = tmp_path / "models" / tokenizer_spm.SPM_MODELS[name]["url"].rpartition("/")[2]
    path.parent.mkdir()
    train_sentencepiece(path)
    chosen = choose_tokenization(references, settings)
    assert f"tok:{'flores101' if name == 'spm' else name}" in signature("bleu", references, chosen)
    score = text_metrics(["a dog ran.", "the cat."], references, ("bleu",), chosen)["bleu"]
    wanted = sacrebleu.corpus_bleu(["a dog ran.", "the cat."], [["a dog runs.", "the cat."]], tokenize=name).score
    assert score == wanted > 0
    monkeypatch.setattr(tokenization, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=f"eval.tokenize is {name}, which needs sentencepiece; install it"):
        choose_tokenization(references, settings)


def train_sentencepiece(path) -> None:
    import sentencepiece

    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a dog runs.", "the cat ran."] * 20),
            model_writer=file,
            vocab_size=18,
            minloglevel=2,
        )


# --- runs ------------------------------------------------------------------------------------------------------------

CHINESE = {letter: chr(0x4E00 + index) for index, letter in enumerate("abcdefghijklmnopqrstuvwxyz")} | {
    " ": "",
    ".": "。",
}


@pytest.fixture(scope="module")
def run():
    """A run that writes Chinese characters for letters, validated by BLEU."""
    files = {
        name: text.lower().translate(str.maketrans(CHINESE)) if name.endswith(".up") else text
        for name, text in small.file_texts(train=60, valid=8, test=6).items()
    }
    settings = {
        **small.TINY,
        **small.sides_in("{files}"),
        "train.steps": 4,
        "train.metric": "bleu",
        "train.eval_every": 4,
        "decode.max_tokens": 30,
    }
    return tiny_run("translate", files, **settings)


def test_validation_and_eval_choose_the_same_tokenizer(run, capsys):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    notes = [record["text"] for record in records if record["event"] == "note"]
    assert any(note.startswith("valid: bleu signature nrefs:1|") and "|tok:zh|" in note for note in notes)
    (valid,) = [record for record in records if record["event"] == "valid"]
    predictor = regard.load(run)
    data = run.parent
    again = predictor.evaluate(((f"{data}/valid.low",), (f"{data}/valid.up",)))
    found = predictor.predict((data / "valid.low").read_text().splitlines(), kind="greedy")
    right = (data / "valid.up").read_text().splitlines()
    assert valid["bleu"] == sacrebleu.corpus_bleu(found, [right], tokenize="zh").score
    assert "|tok:zh|" in again["bleu_signature"] and "|asian:yes|" in again["ter_signature"]


def test_eval_tokenize_on_the_command_line(run, capsys):
    assert main(["eval", str(run), "eval.tokenize=char", "eval.asian_support=off", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert "|tok:char|" in metrics["bleu_signature"] and "|asian:no|" in metrics["ter_signature"]
    assert main(["eval", str(run), "eval.tokenize=klingon"]) == 2
    assert 'eval.tokenize is "klingon"; expected one of auto, 13a, ' in capsys.readouterr().err
    assert main(["eval", str(run), str(run), "eval.tokenize=char", "decode.kind=greedy"]) == 0
    assert capsys.readouterr().out.count("|tok:char|") == 3


def test_runs_with_other_tokenizers_are_not_compared(run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run, other)
    about = json.loads((run / "run.json").read_text())
    about["config"]["eval"]["tokenize"] = "char"
    (other / "run.json").write_text(json.dumps(about))
    with pytest.raises(
        UserError, match=r"different signatures of bleu .*tok:zh.* and .*tok:char.*; set eval.tokenize for all"
    ):
        compare([run, other])
    assert len(compare([run, other], {"eval.tokenize": "zh"})["systems"]) == 2


def test_eval_settings_belong_to_tasks_that_write_text():
    with pytest.raises(UserError, match="eval.tokenize is not a key"):
        regard.build("classify", {"eval.tokenize": "zh"})
    with pytest.raises(UserError, match='eval is a group of settings, not "zh"; set eval.baseline or another'):
        regard.build("classify", {"eval": "zh"})
    with pytest.raises(UserError, match="eval is not a key"):
        regard.build("tag", {"eval": "zh"})
