"""`regard look`: settings beside texts, the formats of pictures, their titles and their fonts."""

import re
import warnings
from pathlib import Path

import matplotlib
import pytest
import torch
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from test_cli_surface import api, feed, run_cli  # noqa: F401

from regard.cli.arguments import AFTER_DASHES, split_arguments
from regard.errors import UserError
from regard.files import check_picture_path
from regard.look import AttentionSite, AttentionView, ViewAxis, draw_confusion, fonts
from regard.look.draw import CELL, LABEL, MAX_GRID, MAX_SIZE, PanelGrid, printable_token
from regard.metrics.labels import ConfusionMatrix

# --- arguments -------------------------------------------------------------------------------------------------------


def test_settings_are_not_texts(api, capsys, tmp_path):  # noqa: F811
    out = str(tmp_path / "p.png")
    assert run_cli(capsys, "look", "run", "A dog.", "decode.kind=greedy", "--out", out)[0] == 0
    assert api.calls[-2:] == [
        ("load", "run", {"decode.kind": "greedy"}),
        ("look", "A dog.", None, out, None, None, None),
    ]
    assert (
        run_cli(
            capsys, "look", "run", "data.max_tokens=9", "a = b", "x^2=4", "--out", out, "--layer", "2", "--head", "all"
        )[0]
        == 0
    )
    assert api.calls[-2:] == [
        ("load", "run", {"data.max_tokens": "9"}),
        ("look", "a = b", "x^2=4", out, 2, "all", None),
    ]


def test_texts_after_two_dashes_may_look_like_settings(api, capsys, tmp_path):  # noqa: F811
    out = str(tmp_path / "p.png")
    assert run_cli(capsys, "look", "run", "device=cpu", "--out", out, "--", "x=1", "decode.kind=greedy")[0] == 0
    assert api.calls[-2:] == [
        ("load", "run", {"device": "cpu"}),
        ("look", "x=1", "decode.kind=greedy", out, None, None, None),
    ]
    assert run_cli(capsys, "look", "--out", out, "--", "run", "x=1")[0] == 0
    assert api.calls[-1] == ("look", "x=1", None, out, None, None, None)
    assert run_cli(capsys, "look", "run", "one", "device=cpu", "--out", out)[0] == 0  # the dashes are forgotten
    assert api.calls[-2] == ("load", "run", {"device": "cpu"}) and AFTER_DASHES.get() == 0


@pytest.mark.parametrize(
    "argument, hint",
    [
        ("x=1", ""),
        ("decde.kind=greedy", " (did you mean decode.strategy.kind?)"),
        ("beam=4", " (did you mean decode.strategy.size?)"),
        ("devise=cpu", " (did you mean device?)"),
    ],
)
@pytest.mark.parametrize("verb", ["look", "predict", "score", "eval"])
def test_a_mistyped_key_is_neither_a_text_nor_a_file(api, capsys, feed, verb, argument, hint):  # noqa: F811
    code, out, err = run_cli(capsys, verb, "run", "one", argument)
    key = argument.partition("=")[0]
    assert (code, out) == (2, "") and not api.calls
    assert err == f"regard: {key} is not a key{hint}; write a text or a name that contains = after --\n"


def test_a_file_whose_name_contains_an_equals_sign(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a=b.txt").touch()
    Path("data.train=x").touch()
    assert split_arguments(["a=b.txt", "data.train=x", "./data.train=x"]) == (
        {"data.train": "x"},
        ["a=b.txt", "./data.train=x"],
    )


@pytest.mark.parametrize("texts", [[], ["a", "b", "c"], ["decode.beam=2"]])
def test_one_or_two_texts(api, capsys, texts):  # noqa: F811
    code, _, err = run_cli(capsys, "look", "run", *texts)
    count = len([text for text in texts if "=" not in text])
    assert code == 2 and f"look takes a text and perhaps its target, not {count} texts" in err and not api.calls


# --- pictures --------------------------------------------------------------------------------------------------------


def cross_view(
    tokens: int, layers: int = 2, heads: int = 4, words: tuple[str, ...] = ("cat", "dog", "$5")
) -> AttentionView:
    sites = [AttentionSite(f"decoder.layers.{i}.cross", "cross", i + 1, heads) for i in range(layers)]
    maps = [(site, torch.rand(heads, tokens, tokens + 1)) for site in sites]
    texts = {"source": [*(words * tokens)[:tokens], "■"], "target": [*(words * tokens)[: tokens - 1], "■"]}
    return AttentionView.of(maps, {name: ViewAxis.of_tokens(name, each, True) for name, each in texts.items()})


def self_view(labels: list[str], *maps: torch.Tensor) -> AttentionView:
    sites = [AttentionSite(f"encoder.layers.{i}.attention", "encoder", i + 1, len(each)) for i, each in enumerate(maps)]
    return AttentionView.of(zip(sites, maps, strict=True), {"source": ViewAxis.of_tokens("token", labels)})


@pytest.fixture
def letters(monkeypatch):
    """SVG files with texts instead of outlines, so that they can be read."""
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")

    def read(path: Path) -> list[str]:
        return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())

    return read


@pytest.mark.parametrize(
    "suffix, start", [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml"), (".SVG", b"<?xml")]
)
def test_the_suffix_names_the_format(tmp_path, suffix, start):
    view, paths = cross_view(2), [tmp_path / f"{name}{suffix}" for name in "ab"]
    for path in paths:
        view.save(path)
    first, second = (path.read_bytes() for path in paths)
    assert first.startswith(start) and first == second


@pytest.mark.parametrize("name", ["p.jpg", "p", "p.txt", "p.svgz"])
def test_another_suffix_is_refused_before_work(api, capsys, tmp_path, name):  # noqa: F811
    words = f"has the suffix {Path(name).suffix!r}; expected one of .html, .png, .pdf, .svg, .json"
    for verb in (["look", "run", "one"], ["eval", "run"]):
        code, _, err = run_cli(capsys, *verb, "--out", str(tmp_path / name))
        expected = words if verb[0] == "look" else words.replace(".html, ", "").replace(", .json", "")
        assert code == 2 and expected in err and not api.calls
    with pytest.raises(UserError, match=re.escape(words)):
        cross_view(3).save(tmp_path / name)
    with pytest.raises(UserError, match="is a folder; give a file name"):
        check_picture_path(tmp_path)
    with pytest.raises(UserError, match="its folder does not exist"):
        check_picture_path(tmp_path / "missing" / "p.png")


def test_a_picture_names_layer_head_and_axes(tmp_path, letters):
    view, path = cross_view(4, layers=3, heads=2), tmp_path / "a.svg"
    view.save(path)
    texts = letters(path)
    assert {"source", "target", "cat", "$5", "■"} <= {*texts} and "layer 2 of 3, mean of 2 heads" in " ".join(texts)
    view.save(path, "all", "all")
    titles = [text for text in letters(path) if text.startswith("layer")]
    assert titles == [f"layer {layer} of 3, head {head} of 2" for layer in (1, 2, 3) for head in (1, 2)]
    view.save(path, layer=3, head=1)
    assert "layer 3 of 3, head 1 of 2" in " ".join(letters(path))
    own = self_view(["a", "b"], torch.rand(3, 2, 2), torch.rand(1, 2, 2))
    own.save(path)
    assert "self-attention, layer 2 of 2, head 1 of 1" in " ".join(letters(path)) and "attended token" in letters(path)
    own.save(path, "all", "all")
    assert len([text for text in letters(path) if text.startswith("layer")]) == 4  # a layer has 3 heads, the other 1
    draw_confusion(path, ConfusionMatrix(["a", "b"], ["a", "a"]))
    assert {"gold", "predicted", "confusion matrix"} <= {*letters(path)}


@pytest.mark.parametrize("which", [{"layer": 3}, {"head": 0}, {"head": "x"}, {"layer": True}, {"layer": "-1"}])
def test_there_is_no_such_layer_or_head(tmp_path, which):
    ((name, value),) = which.items()
    with pytest.raises(
        UserError, match=f"{name} is {value!r}; expected a number from 1 to {2 if name == 'layer' else 4}, or all"
    ):
        cross_view(3).save(tmp_path / "a.png", **which)


def test_sizes_are_bounded_and_labels_readable():
    assert PanelGrid(1, 1, 3, 3).cell == PanelGrid(1, 1, 40, 40).cell == CELL  # one panel
    assert PanelGrid(1, 1, 600, 600).cell * 600 == pytest.approx(MAX_SIZE)
    few, many = PanelGrid(6, 8, 3, 3), PanelGrid(6, 8, 40, 40)
    assert few.cell * 3 >= 1.3 and many.step == 1 and many.font >= 5.5  # every token of 40 has its label
    for rows, columns, height, width in [
        (6, 8, 3, 3),
        (6, 8, 40, 40),
        (12, 12, 512, 512),
        (2, 2, 500, 1),
        (1, 16, 1, 300),
    ]:
        grid = PanelGrid(rows, columns, height, width)
        assert max(grid.figure(["x" * 32], ["x" * 32])) <= MAX_GRID + 11 and grid.cell * grid.step >= LABEL - 1e-9


def test_tokens_are_printable():
    assert printable_token("a b\n") == "a·b·" and printable_token("$5") == r"\$5"
    assert printable_token("你\x00", {"你", "\x00"}) == r"\u4f60\x00"
    assert printable_token("x" * 40) == "x" * 31 + "…"


# --- fonts -----------------------------------------------------------------------------------------------------------


def make_font(path: Path, name: str, letters: str) -> Path:
    """A TrueType font with these letters."""
    names = [".notdef", *(f"g{ord(letter):x}" for letter in letters)]
    builder = FontBuilder(100, isTTF=True)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap(dict(zip(map(ord, letters), names[1:], strict=True)))
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    pen.lineTo((0, 80))
    pen.lineTo((80, 0))
    pen.closePath()
    glyph = pen.glyph()
    builder.setupGlyf(dict.fromkeys(names, glyph))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (100, 0)))
    builder.setupHorizontalHeader(ascent=80, descent=-20)
    builder.setupNameTable(
        {"familyName": name, "styleName": "Regular", "fullName": name, "psName": name.replace(" ", "")}
    )
    builder.setupOS2(sTypoAscender=80, usWinAscent=80, usWinDescent=20, usWeightClass=400)
    builder.setupPost()
    builder.save(path)
    return path


@pytest.fixture
def only_default_fonts(monkeypatch):
    """As on a machine with matplotlib's own fonts."""
    own = [entry for entry in font_manager.fontManager.ttflist if "mpl-data" in entry.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    monkeypatch.setattr(font_manager, "findSystemFonts", list)


def test_an_installed_font_has_the_characters(only_default_fonts, tmp_path, monkeypatch, letters):
    """Also one that was installed after matplotlib wrote its list of fonts."""
    path, junk = make_font(tmp_path / "han.ttf", "Test Han", "你好"), tmp_path / "junk.ttf"
    junk.write_bytes(b"not a font")
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(path), str(junk)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fonts.font_families(["你好", "cat"]) == (["sans-serif", "Test Han"], set())
        view = cross_view(3, words=("你", "好", "cat"))
        view.save(tmp_path / "a.svg")
        view.save(tmp_path / "a.png")
    assert {"你", "好", "cat"} <= {*letters(tmp_path / "a.svg")} and "Test Han" in (tmp_path / "a.svg").read_text()


def test_preferred_fonts_come_first_and_none_more_than_needed(only_default_fonts, tmp_path):
    for name, has in {"Aaa": "你好", "Noto Sans CJK SC": "你好", "Zzz": "ไทย"}.items():
        font_manager.fontManager.addfont(make_font(tmp_path / f"{name}.ttf", name, has))
    (tmp_path / "Aaa.ttf").write_bytes(b"damaged")
    assert fonts.font_families(["你好", "ไทย"]) == (["sans-serif", "Noto Sans CJK SC", "Zzz"], set())
    assert fonts.font_families(["cat\u200d \u0301", "привет"]) == (["sans-serif"], set())


@pytest.mark.parametrize(
    "text, package",
    [
        ("你好世界", "fonts-noto-cjk"),
        ("한국", "fonts-noto-cjk"),
        ("ไทย", "fonts-noto-core"),
        ("🫠", "fonts-symbola"),
    ],
)
def test_missing_characters_are_named_with_a_remedy(only_default_fonts, tmp_path, text, package, letters):
    with pytest.warns(
        UserWarning, match=f"no installed font has .*as codes such as .*; install .*apt install {package}"
    ) as notices:
        cross_view(3, words=(text, "cat\x07", "dog")).save(tmp_path / "a.svg")
    assert len(notices) == 1  # one notice, none of matplotlib's own
    assert text.encode("unicode_escape").decode() in letters(tmp_path / "a.svg") and r"cat\x07" in letters(
        tmp_path / "a.svg"
    )
