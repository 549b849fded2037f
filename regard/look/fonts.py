"""Fonts for labels in any script: finds installed fonts with the characters, or warns."""

import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress

PREFERRED = (
    "Noto Sans", "Source Han Sans", "WenQuanYi", "PingFang", "Hiragino Sans", "Microsoft YaHei", "Yu Gothic",
    "Malgun Gothic", "Apple SD Gothic", "IPAexGothic", "Noto Emoji", "Segoe UI", "Symbola", "Arial Unicode",
)  # fmt: skip
PLACEHOLDERS = ("Last Resort", ".LastResort", "Adobe Blank")  # their glyphs are boxes, for every character
INVISIBLE = ("Cf", "Zs", "Zl", "Zp", "Mn", "Me")  # format characters, spaces, marks on other characters
UNDRAWABLE = ("Cc", "Cs", "Cn", "Co")  # control characters, lone surrogates, characters without a meaning
HAN_KANA_HANGUL = (
    (0x1100, 0x11FF), (0x2E80, 0xA4CF), (0xAC00, 0xD7FF), (0xF900, 0xFAFF), (0xFE30, 0xFFEF), (0x20000, 0x3FFFF),
)  # fmt: skip
PACKAGES = {  # the first that has a character
    "Noto Sans CJK (Debian, Ubuntu: apt install fonts-noto-cjk)": HAN_KANA_HANGUL,
    "Symbola (Debian, Ubuntu: apt install fonts-symbola)": ((0x2190, 0x2BFF), (0x1F000, 0x1FAFF)),
    "Noto (Debian, Ubuntu: apt install fonts-noto-core)": ((0, 0x10FFFF),),
}


def font_families(texts: Iterable[str]) -> tuple[list[str], set[str]]:
    """Font families that together have the characters, in order of preference, and the characters that none has."""
    import matplotlib
    from matplotlib.font_manager import FontProperties, findfont

    families = list(matplotlib.rcParams["font.family"])
    missing = {letter for text in texts for letter in text if unicodedata.category(letter) not in INVISIBLE}
    missing -= _glyphs(findfont(FontProperties(family=families)), missing)
    drawable = {letter for letter in missing if unicodedata.category(letter) not in UNDRAWABLE}
    for name, path in _other_fonts() if drawable else ():
        if covered := _glyphs(path, drawable):
            families.append(name)
            missing, drawable = missing - covered, drawable - covered
        if not drawable:
            break
    if drawable:
        _warn(drawable)
    return families, missing


def _glyphs(path: str, letters: set[str]) -> set[str]:
    """Those of the letters that a font has."""
    from matplotlib.font_manager import get_font

    try:
        font = get_font(path)
    except (RuntimeError, OSError):  # a font of bitmaps, such as colored emoji
        return set()
    return {letter for letter in letters if font.get_char_index(ord(letter))}


def _other_fonts() -> Iterator[tuple[str, str]]:
    """Name and path of the installed fonts, preferred ones first; then of those that matplotlib does not know yet."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    def fonts() -> dict[str, str]:
        regular = (font for font in fontManager.ttflist if font.weight in (400, "normal") and font.style == "normal")
        return {font.name: font.fname for font in regular if not font.name.startswith(PLACEHOLDERS)}

    def rank(name: str) -> tuple[int, str]:
        return next((i for i, prefix in enumerate(PREFERRED) if name.startswith(prefix)), len(PREFERRED)), name

    before = fonts()
    yield from ((name, before[name]) for name in sorted(before, key=rank))
    for path in {*findSystemFonts()} - {entry.fname for entry in fontManager.ttflist}:
        with suppress(RuntimeError, OSError):  # not a font, or one that matplotlib cannot read
            fontManager.addfont(path)
    yield from ((name, path) for name, path in sorted(fonts().items()) if name not in before)


def _warn(missing: set[str]) -> None:
    letters = sorted(missing)
    listed = " ".join(letters[:5]) + (f" and {len(letters) - 5} more characters" if len(letters) > 5 else "")
    warnings.warn(
        f"no installed font has {listed}, which the picture shows as codes such as {escape(letters[0])}; install "
        f"{' and '.join(dict.fromkeys(map(_package, letters)))}",
        stacklevel=4,
    )


def _package(letter: str) -> str:
    """A font that has the character, and how to install it."""
    inside = (name for name, ranges in PACKAGES.items() if any(low <= ord(letter) <= high for low, high in ranges))
    return next(inside)


def escape(letter: str) -> str:
    r"""The code of a character, such as \u4f60."""
    return letter.encode("unicode_escape").decode("ascii")
