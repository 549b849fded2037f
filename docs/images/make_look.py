"""Draws the pictures of docs/look.md: `python docs/images/make_look.py DATES DIGITS SCENES`, three runs.

It needs chromium and playwright (the extra `dev`), because the pictures are those of the page.
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright.sync_api import Page, sync_playwright

import regard
from regard.synthetic.dates import make_dates
from regard.synthetic.digits import make_digits
from regard.synthetic.scenes import make_scenes

PLACE = Path(__file__).parent


def main(dates: str, digits: str, scenes: str) -> None:
    translator = regard.load(dates)
    source = max((each for each, _ in make_dates(translator.run.data.locales, 2000, seed=1)["test"]), key=len)
    image, _ = make_digits(40)["test"][1]
    views = {
        "heads": (translator.look(source), "light", 1180, 470, ["g"]),
        "words": (translator.look(source), "light", 1180, 470, ["w", "]", "]"]),
        "alignment": (translator.look(source), "light", 1180, 420, ["a", "ArrowDown"]),
        "dark": (translator.look(source), "dark", 1180, 560, ["l"]),
        "digit": (regard.load(digits).look(image), "light", 1180, 760, ["w", "ArrowDown"]),
        "scene": (regard.load(scenes).look(make_scenes(20)["test"][3][0]), "light", 1180, 640, ["w"]),
        "phone": (translator.look(source), "light", 390, 760, ["w", "]", "]"]),
    }
    with TemporaryDirectory() as folder, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        for name, (view, scheme, width, height, keys) in views.items():
            view.save(path := Path(folder, f"{name}.html"))
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(path.as_uri())
            press(page, keys)
            page.screenshot(path=str(PLACE / f"look-{name}.png"))
        browser.close()


def press(page: Page, keys: list[str]) -> Any:
    page.wait_for_selector("#main[data-ready]")
    for key in keys:
        page.keyboard.press(key)
        page.wait_for_timeout(200)


if __name__ == "__main__":
    main(*sys.argv[1:])
