"""The surface of the command line: verbs, options, calls and exit codes. Other files test the results."""

import dataclasses
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import typer

import regard
from regard.cli import app as cli
from regard.config.strategies import Greedy
from regard.data.tables.columns import SOURCE, TARGET, TEXT, ColumnRule
from regard.errors import UserError
from regard.files import format_output
from regard.messages.base import Result
from regard.tasks.reading import ItemReader

SURFACE = {
    "demo": ["--out"],
    "train": ["[RECIPE]", "[KEY=VALUE]", "--out", "--resume", "--show", "--dry", "--explain", "--json"],
    "eval": ["RUN", "[RUN|KEY=VALUE]", "--data", "--json", "--out", "--tune", "--force", "--mute"],
    "predict": [
        "RUN",
        "[FILE|KEY=VALUE]",
        "--prompt",
        "--details",
        "--top",
        "--embed",
        "--similar",
        "--labels",
        "--template",
        "--coco",
        "--draw",
        "--out",
        "--format",
        "--language",
        "--task",
        "--tune",
        "--force",
        "--mute",
    ],
    "score": ["RUN", "[FILE|KEY=VALUE]", "--details", "--tune", "--force"],
    "look": [
        "RUN",
        "[TEXT|KEY=VALUE]",
        "--out",
        "--layer",
        "--head",
        "--kind",
        "--record",
        "--heads",
        "--data",
        "--effect",
        "--word",
        "--lens",
        "--saliency",
        "--deletion",
        "--examples",
        "--norms",
        "--ngrams",
        "--mute",
    ],
    "align": ["[FILE]", "--run", "--symmetrize", "--iterations", "--gold"],
    "align-audio": ["RUN", "SOUND", "[TEXT]", "--json"],
    "convert": ["RUN", "--to", "--out", "--average", "--precision", "--data", "--merge", "--json"],
    "prune": ["RUN", "--heads", "--out", "--effect"],
    "distill": ["RUN", "[KEY=VALUE]", "--data", "--out", "--splice"],
    "info": ["RUN", "--json"],
    "list": ["--json"],
}


@dataclasses.dataclass(frozen=True)
class Record(Result):
    text: str


def fake_reader(*roles, **named):
    rule = ColumnRule(roles, required=1)
    return ItemReader(rule, rule, fields=len(roles), table_formats=frozenset({"tsv"}), **named)


class FakeAnswers:
    """Answers every text with upper case."""

    def requests(self, items, details=False):
        return list(items)

    def predict_requests(self, requests):
        self.calls.append(("predict", len(requests)))
        return [Record(text.upper()) for text in requests]

    def plain_result(self, request, result):
        return result.text

    def format_line(self, name, request, result):
        return format_output(result.text)


class FakePredictor(FakeAnswers):
    """A fake translator: it returns upper case."""

    item_reader = fake_reader(SOURCE, TARGET)
    run = types.SimpleNamespace(data=types.SimpleNamespace(format="auto", train=()))

    def __init__(self, calls):
        self.calls = calls

    def score(self, sources, targets, details=False):
        self.calls.append(("score", sources, targets))
        return [{"score": -1.0} if details else -float(len(target)) for target in targets]

    def look(self, text, target=None, layer=None):
        return types.SimpleNamespace(
            save=lambda path, *which: self.calls.append(("look", text, target, str(path), *which)), decision=None
        )

    def evaluate(self, sides):
        self.calls.append(("evaluate", sides))
        return {"examples": 3, "bleu": 12.34567, "signature": "x|y"}


class FakeApi(types.ModuleType):
    """A fake regard.api that records calls."""

    def __init__(self):
        super().__init__("regard.api")
        self.calls = []
        stopped = types.SimpleNamespace(outcome=types.SimpleNamespace(signal=0))
        self.run_training = lambda *a, **k: self.calls.append(("train", a, k)) or stopped
        self.show = lambda *a: f"show {a}"
        self.dry = lambda *a: f"dry {a}"
        self.recipes = lambda: [("one", "The first.")]

    def load(self, path, overrides, tune=None, force=False):
        if path == "broken":
            raise ZeroDivisionError("oh\nno")
        if path == "nowhere":
            raise UserError("nowhere is not a run\nsecond line")
        self.calls.append(("load", path, overrides))
        return FakePredictor(self.calls)


@pytest.fixture
def api(monkeypatch):
    fake = FakeApi()
    monkeypatch.setitem(sys.modules, "regard.api", fake)
    monkeypatch.setattr(regard, "api", fake, raising=False)
    return fake


@pytest.fixture
def feed(monkeypatch):
    def into_stdin(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    into_stdin(b"")
    return into_stdin


def run_cli(capsys, *arguments: str) -> tuple[int, str, str]:
    code = cli.main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_verbs_and_options():
    def written(each):
        if each.param_type_name == "option":
            return each.opts[0]
        name = each.metavar or each.name.upper()
        return name if each.required else f"[{name}]"

    commands = typer.main.get_command(cli.app).commands
    assert {verb: [written(each) for each in command.params] for verb, command in commands.items()} == SURFACE


def python(*arguments: str, **others) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, **others)


def test_help_is_quick_and_imports_no_torch():
    def seconds() -> float:
        began = time.perf_counter()
        assert "Commands:" in python("-m", "regard", "--help").stdout
        return time.perf_counter() - began

    assert min(seconds() for _ in range(3)) < 0.7
    code = "import sys, regard.cli; code = regard.cli.main(['--help']); sys.exit(code or 'torch' in sys.modules)"
    assert python("-c", code).returncode == 0


def test_version(capsys):
    assert run_cli(capsys, "--version") == (0, f"regard {regard.__version__}\n", "")


def test_no_verb_prints_plain_help(capsys):
    code, out, err = run_cli(capsys)
    assert (code, err) == (0, "")
    assert all(verb in out for verb in SURFACE)
    assert "│" not in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["trian"], "regard: there is no verb 'trian'; did you mean train?"),
        (
            ["xyzzy"],
            "regard: there is no verb 'xyzzy'; expected one of demo, train, eval, predict, score, look, align, align-audio, "
            "convert, prune, distill, info, list",
        ),
        (["train"], "regard: missing argument 'RECIPE'; `regard train --help` shows what is expected"),
        (["train", "translate", "--rusume"], "regard: no such option: --rusume"),
        (["--vorsion"], "regard: no such option: --vorsion"),
        (["train", "translate", "steps"], "regard: 'steps' is not a setting; expected key=value, such as"),
        (["demo", "extra"], "regard: got unexpected extra argument"),
        (["train", "translate", "--out"], "regard: option '--out' requires an argument"),
        (["predict", "run", "none.txt"], "regard: none.txt cannot be read: No such file or directory"),
        (["score", "run", "none.txt"], "regard: none.txt cannot be read: No such file or directory"),
        (
            ["predict", "run", "a.txt", "--prompt", "x"],
            "regard: --prompt and the file a.txt are both given; give one of the two",
        ),
        (["eval", "run", "--data", "a,"], "regard: 'a,' has nothing on one side of a comma"),
    ],
)
def test_user_errors_are_one_line_and_exit_2(arguments, sentence, api, feed, capsys):
    code, out, err = run_cli(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(sentence)
    assert err.count("\n") == 1
    assert not any(call[0] == "load" for call in api.calls)


def test_an_error_of_several_lines(api, feed, capsys):
    assert run_cli(capsys, "predict", "nowhere") == (2, "", "regard: nowhere is not a run\nregard: second line\n")


def test_a_bug_exits_1(api, feed, capsys, monkeypatch):
    monkeypatch.delenv("REGARD_TRACEBACK", raising=False)
    code, _, err = run_cli(capsys, "predict", "broken")
    assert code == 1
    assert err.startswith("regard: this is a bug in regard: ZeroDivisionError: oh no")
    assert err.count("\n") == 1
    monkeypatch.setenv("REGARD_TRACEBACK", "1")
    assert "Traceback" in run_cli(capsys, "predict", "broken")[2]


@pytest.mark.parametrize(
    ("error", "words", "expected"),
    [(KeyboardInterrupt(), "stopped", 130), (OSError(28, "No space left"), "No space", 2)],
)
def test_interruptions(error, words, expected, api, capsys, monkeypatch):
    def raising(*arguments, **named):
        raise error

    monkeypatch.setattr(api, "run_training", raising)
    code, _, err = run_cli(capsys, "train", "dates")
    assert code == expected
    assert err.startswith(f"regard: {words}")
    assert err.count("\n") == 1


def test_train(api, capsys):
    assert (
        run_cli(capsys, "train", "translate", "train.steps=3", "data.train=a=1,b", "--resume", "--out", "runs/x")[0]
        == 0
    )
    changes = {"train.steps": "3", "data.train": "a=1,b"}
    assert api.calls == [("train", ("translate", changes), {"out": Path("runs/x"), "resume": True, "progress": True})]
    run_cli(capsys, "train", "some/where/mine.toml")
    assert api.calls[1][2]["out"] == Path("runs/mine")
    assert run_cli(capsys, "train", "translate", "a.b=1", "--show")[1] == "show ('translate', {'a.b': '1'}, False)\n"
    assert run_cli(capsys, "train", "translate", "a.b=1", "--dry")[1] == "dry ('translate', {'a.b': '1'})\n"
    assert len(api.calls) == 2


def test_eval(api, capsys):
    code, out, _ = run_cli(capsys, "eval", "run", "--data", "a.en,b.de", "decode.beam=2")
    assert (code, out) == (0, "examples 3\nbleu 12.3457\nsignature x|y\n")
    assert api.calls == [("load", "run", {"decode.beam": "2"}), ("evaluate", (("a.en",), ("b.de",)))]
    code, out, _ = run_cli(capsys, "eval", "run", "--json")
    assert json.loads(out) == {"examples": 3, "bleu": 12.34567, "signature": "x|y"}
    assert api.calls[-1] == ("evaluate", None)


def test_eval_of_several_runs(api, capsys):
    one = {"bleu": {"score": 30.0, "mean": 30.1, "interval": 1.0, "p": None}}
    other = {"bleu": {"score": 31.0, "mean": 31.1, "interval": 1.2, "p": 0.012}}
    systems = [{"run": "a", "bleu": 30.0, "bootstrap": one}, {"run": "b", "bleu": 31.0, "bootstrap": other}]
    comparison = {"systems": systems, "signatures": {"bleu": "x|y"}}
    api.compare = lambda *a: api.calls.append(a) or comparison
    code, out, _ = run_cli(capsys, "eval", "a", "b", "decode.beam=2", "--data", "s,t")
    assert code == 0 and api.calls == [(["a", "b"], {"decode.beam": "2"}, (("s",), ("t",)))]
    assert out == (
        "run a\nbleu 30.0000\n\nrun b\nbleu 31.0000\n\npaired bootstrap against a\n"
        "bleu 30.00  mean 30.10 ± 1.00  a\nbleu 31.00  mean 31.10 ± 1.20  p 0.0120  b\nbleu signature x|y\n"
    )
    assert json.loads(run_cli(capsys, "eval", "a", "b", "--json")[1]) == comparison


def test_convert(api, capsys):
    api.convert = lambda *a, **k: api.calls.append((a, k)) or {"out": "x", "checked": "8 sentences"}
    assert run_cli(capsys, "convert", "run", "--to", "huggingface", "--out", "x") == (
        0,
        "out x\nchecked 8 sentences\n",
        "",
    )
    plain = {"out": Path("x"), "to": "huggingface", "average": 0, "precision": "fp32", "data": None, "merge": False}
    assert api.calls == [(("run",), plain)]
    run_cli(capsys, "convert", "run", "--average", "3", "--out", "x", "--precision", "int8", "--data", "a,b")
    assert api.calls[1][1] == {
        "out": Path("x"),
        "to": None,
        "average": 3,
        "precision": "int8",
        "data": (("a",), ("b",)),
        "merge": False,
    }


def test_predict_reads_stdin(api, feed, capsys):
    feed("\ufeffein Haus\r\n\nü\u2028b\nlast".encode())
    assert run_cli(capsys, "predict", "run", "decode.kind=greedy") == (0, "EIN HAUS\n\nÜ\u2028B\nLAST\n", "")
    assert api.calls[0] == ("load", "run", {"decode.kind": "greedy"})


def test_options_that_are_short_for_settings(api, feed, capsys):
    assert run_cli(capsys, "predict", "run", "--language", "de", "--task", "translate", "decode.beam=2")[0] == 0
    assert run_cli(capsys, "predict", "run", "--language", "no", "decode.language=de")[0] == 0  # the option wins
    both = {"decode.beam": "2", "decode.language": "de", "decode.task": "translate"}
    assert api.calls == [("load", "run", both), ("load", "run", {"decode.language": "no"})]


def test_predict_reads_files_in_order_compressed_or_not(api, feed, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.y=1.txt").write_text("one\n")
    (tmp_path / "b.GZ").write_bytes(gzip.compress(b"two\n"))
    (tmp_path / "c.xz").write_bytes(lzma.compress(b"three\n"))
    feed(b"zero\n")
    code, out, _ = run_cli(capsys, "predict", "run", "-", "./x.y=1.txt", "b.GZ", "c.xz", "-", "--details")
    assert code == 0
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["ZERO", "ONE", "TWO", "THREE"]


def test_predict_processes_long_input_in_chunks(api, feed, capsys):
    feed(b"a\n" * 2500)
    assert run_cli(capsys, "predict", "run")[1] == "A\n" * 2500
    assert api.calls[1:] == [("predict", 1000), ("predict", 1000), ("predict", 500)]


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("a.txt", b"good\nb\xffd\n", "a.txt:2 is not UTF-8"),
        ("a.txt", b"good\n\0\n", "a.txt:2 has a NUL byte"),
        ("a.gz", b"plain text", "a.gz cannot be decompressed after line 0"),
        ("a.gz", gzip.compress(os.urandom(9999))[:-99], "a.gz"),
        (
            "a.gz",
            b"\x1f\x8b\x08" + bytes(7) + b"\xff" * 99,
            "a.gz cannot be decompressed after line 0",
        ),  # zlib's own exception
        ("a.xz", b"plain text", "a.xz cannot be decompressed after line 0"),
    ],
)
def test_predict_rejects_input_that_is_not_text(name, data, sentence, api, feed, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(data)
    code, _, err = run_cli(capsys, "predict", "run", name)
    assert code == 2
    assert err.startswith(f"regard: {sentence}")
    assert err.count("\n") == 1


def test_a_prediction_is_one_line(api, feed, capsys):
    feed(b"a\rb\n")
    assert run_cli(capsys, "predict", "run")[1] == "A B\n"


def test_score(api, feed, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("s1\ns2\n")
    (tmp_path / "b").write_text("t\ntt\n")
    assert run_cli(capsys, "score", "run", "a", "b", "device=cpu") == (0, "-1.000000\n-2.000000\n", "")
    assert api.calls == [("load", "run", {"device": "cpu"}), ("score", ["s1", "s2"], ["t", "tt"])]
    feed(b"s\tttt\n")
    assert run_cli(capsys, "score", "run")[1] == "-3.000000\n"
    feed(b"s\tttt\n")
    assert run_cli(capsys, "score", "run", "--details")[1] == '{"score": -1.0}\n'
    feed(b"s\tt\nno tab\n")
    assert run_cli(capsys, "score", "run")[2].startswith("regard: stdin:2 has 0 tabs; expected the source, one tab")
    assert run_cli(capsys, "score", "run", "a")[2].startswith(
        "regard: score takes two files, SOURCE and TARGET, or none"
    )
    (tmp_path / "b").write_text("t\ntt\nttt\ntttt\n")
    assert run_cli(capsys, "score", "run", "a", "b")[2] == "regard: a has 2 lines and b has 4; expected equally many\n"
    assert run_cli(capsys, "score", "run", "b", "a")[2] == "regard: b has 4 lines and a has 2; expected equally many\n"


class FakeLanguagePredictor(FakeAnswers):
    """A fake language model."""

    item_reader = fake_reader(TEXT, record_field="prompt", result_field="text")

    def __init__(self, calls):
        self.calls = calls
        data = types.SimpleNamespace(format="auto", train=())
        self.run = types.SimpleNamespace(decode=types.SimpleNamespace(strategy=Greedy()), data=data)

    def predict(self, texts, details=False):
        self.calls.append(("predict", texts))
        return {"text": "one"} if details and isinstance(texts, str) else [text.upper() for text in texts]

    def stream(self, prompt):
        self.calls.append(("stream", prompt))
        yield from ("one", " two\n", "three")

    def score(self, texts, targets=None, details=False):
        return [-float(len(text)) for text in texts]


def test_language_models(api, feed, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(api, "load", lambda *_, **__: FakeLanguagePredictor(api.calls))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("s1\ns234\n")
    assert run_cli(capsys, "score", "run", "a", "a")[1] == "-2.000000\n-4.000000\n" * 2
    feed(b"a\tb\n")
    assert run_cli(capsys, "score", "run")[1] == "-3.000000\n"  # a tab is a character
    assert run_cli(capsys, "predict", "run", "--prompt", "zero ") == (0, "one two\nthree\n", "")
    assert run_cli(capsys, "predict", "run", "--prompt", "zero", "--details")[1] == '{"text": "one"}\n'
    feed(b'{"prompt": "x"}\n' * 1001)
    assert run_cli(capsys, "predict", "run")[1] == '{"prompt": "x", "text": "X"}\n' * 1001
    feed(b'{"prompt": 1}\n')
    assert run_cli(capsys, "predict", "run")[1] == '{"PROMPT": 1}\n'


def test_a_terminal_shows_the_prompt_before_its_continuation(api, capsys, monkeypatch):
    monkeypatch.setattr(api, "load", lambda *_, **__: FakeLanguagePredictor(api.calls))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run_cli(capsys, "predict", "run", "--prompt", "zero ") == (0, "one two\nthree\n", "zero ")


def test_look_and_list(api, capsys):
    assert run_cli(capsys, "look", "run", "one day", "--out", "p.png") == (0, "picture p.png\n", "")
    assert api.calls[-1] == ("look", "one day", None, "p.png", None, None, None)
    code, out, _ = run_cli(capsys, "list")
    assert code == 0
    assert "  one  The first.\n" in out
    assert "  transformer  sizes: tiny, small, base, big\n" in out


# Real streams of a real process.
FAKE = """
import sys, types, regard
from regard.data.tables.columns import TEXT, ColumnRule
from regard.tasks.reading import ItemReader
api = types.ModuleType("regard.api")
data = types.SimpleNamespace(format="auto", train=())
rule = ColumnRule((TEXT,))
result = types.SimpleNamespace(notices=())
fake = types.SimpleNamespace(item_reader=ItemReader(rule, rule, table_formats=()), run=types.SimpleNamespace(data=data))
fake.requests, fake.predict_requests = lambda texts, details: texts, lambda texts: [result] * len(texts)
fake.format_line = lambda name, text, result: text
api.load = lambda *_, **__: fake
sys.modules["regard.api"] = regard.api = api
from regard.cli import main
sys.exit(main(["predict", "run"]))
"""


def test_a_closed_pipe_and_closed_streams(tmp_path):
    (tmp_path / "fake.py").write_text(FAKE)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "LC_ALL": "C", "PYTHONUTF8": "0"}

    def shell(line: str) -> subprocess.CompletedProcess:
        line = line.replace("PREDICT", f'"{sys.executable}" fake.py')
        return subprocess.run(["bash", "-c", line], capture_output=True, cwd=tmp_path, env=environment, timeout=60)

    (tmp_path / "long.txt").write_text("y\n" * 300000)
    enough = shell("set -o pipefail; PREDICT < long.txt | head -n 1")
    assert (enough.returncode, enough.stdout, enough.stderr) == (0, b"y\n", b"")
    closed = shell("PREDICT <&-")
    assert (closed.returncode, closed.stdout, closed.stderr) == (0, b"", b"")
    nowhere = shell("echo a | PREDICT >&-")
    assert (nowhere.returncode, nowhere.stderr) == (0, b"")
    full = shell("echo a | PREDICT > /dev/full")
    assert (full.returncode, full.stderr) == (2, b"regard: No space left on device\n")
    umlaut = shell("printf '\\303\\274' | PREDICT")
    assert (umlaut.returncode, umlaut.stdout) == (0, b"\xc3\xbc\n")
