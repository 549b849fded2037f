"""The page in a browser: each view is drawn, hover and keys respond, nothing fails, wide and narrow, light and dark."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.look import AttentionSite, AttentionView, FrameSegment, PatchSegment, QuerySegment, TextSegment, ViewAxis
from regard.look.decision import Decision, NGramEntry

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--no-first-run",
]
NASTY = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        reason = "there is no chromium; install it (apt-get install chromium)"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=found, args=FLAGS)
        yield opened
        opened.close()


def random_maps(
    kind: str, layers: int, heads: int, queries: int, keys: int
) -> list[tuple[AttentionSite, torch.Tensor]]:
    scores = torch.randn(layers, heads, queries, keys, generator=torch.Generator().manual_seed(1)) * 3
    weights = scores.softmax(-1)
    return [(AttentionSite(f"{kind}.{i}", kind, i + 1, heads), weights[i]) for i in range(layers)]  # type: ignore[arg-type]


def translation() -> AttentionView:
    axes = {
        "source": ViewAxis.of_tokens("source", ["▁A", "▁dog", "▁runs", NASTY, "■"], ended=True),
        "target": ViewAxis.of_tokens("target", ["▁Ein", "▁Hund", "▁rennt", "■"], ended=True),
        "prefix": ViewAxis.of_tokens("token", ["□", "▁Ein", "▁Hund", "▁rennt"]),
    }
    maps = random_maps("encoder", 3, 4, 5, 5) + random_maps("decoder", 2, 4, 4, 4) + random_maps("cross", 2, 4, 4, 5)
    return AttentionView.of(maps, axes, title=f"transformer {NASTY}")


def pixels(height: int, width: int) -> Any:
    return np.random.default_rng(1).integers(0, 255, (height, width, 3), np.uint8)


def image() -> AttentionView:
    axis = ViewAxis("patch", (TextSegment(("[CLS]",)), PatchSegment(4, 6, pixels(32, 48))))
    return AttentionView.of(random_maps("encoder", 2, 2, 25, 25), {"source": axis}, title="vit")


def objects() -> AttentionView:
    boxes = ((0.1, 0.1, 0.4, 0.5), (0.5, 0.2, 0.9, 0.9), (0.0, 0.0, 1.0, 1.0))
    queries = QuerySegment(("cat", NASTY, "dog"), (0.2, 0.9, 0.6), boxes, pixels(40, 60))
    axes = {"source": ViewAxis("patch", (PatchSegment(4, 6, pixels(40, 60)),)), "target": ViewAxis("query", (queries,))}
    maps = random_maps("encoder", 1, 2, 24, 24) + random_maps("decoder", 2, 2, 3, 3) + random_maps("cross", 2, 2, 3, 24)
    return AttentionView.of(maps, axes, title="detr")


def sound() -> AttentionView:
    frames = FrameSegment(60, 0.04, 0.02, np.random.default_rng(1).normal(size=(240, 20)).astype(np.float32))
    axes = {
        "source": ViewAxis("second", (frames,)),
        "target": ViewAxis.of_tokens("target", ["C", "Q", "■"], ended=True),
    }
    return AttentionView.of(
        random_maps("encoder", 1, 2, 60, 60) + random_maps("cross", 2, 2, 3, 60), axes, title="speech"
    )


def long() -> AttentionView:
    axis = ViewAxis.of_tokens("token", [f"▁word{number}" for number in range(1000)])
    return AttentionView.of(random_maps("decoder", 1, 3, 1000, 1000), {"prefix": axis}, title="gpt")


def labels() -> AttentionView:
    tokens = ["□", "▁a", "▁good", NASTY, "■"]
    top = ((NGramEntry("good", "word", 0.9), NGramEntry(NASTY, "characters", 0.2)), (NGramEntry("a", "word", 0.1),))
    parts = tuple((0.1 * i, -0.1) for i in range(5))
    decision = Decision(("glad", NASTY), True, (0.1, 0.2), (1.1, -0.4), (0.1, 0.1), tuple(tokens), parts, top)
    view = AttentionView.of(
        random_maps("encoder", 2, 2, 5, 5), {"source": ViewAxis.of_tokens("token", tokens)}, title="bert"
    )
    return replace(view, decision=decision)


# What a view draws: a selector that must match, for each of the pages.
DRAWN = {
    "translation": {
        "g": ".grid button canvas", "m": ".matrix .cells", "l": ".lines .entry", "w": ".flow .token.chosen",
        "a": ".alignment canvas", "r": ".axes .hint",
    },
    "image": {"g": ".grid button canvas", "m": ".matrix canvas", "l": ".lines .entry", "w": ".picture canvas", "r": ".picture canvas"},
    "objects": {"g": ".grid button canvas", "m": ".matrix canvas", "w": ".queries .token.chosen", "r": ".picture canvas"},
    "sound": {"g": ".grid button canvas", "m": ".matrix canvas", "w": ".sound canvas", "a": ".alignment canvas"},
    "labels": {"g": ".grid button canvas", "n": ".from .top .bar", "w": ".flow .token.chosen"},
    "long": {"m": ".matrix .overview", "l": ".lines .entry", "w": ".flow .token.chosen", "r": ".message", "g": ".grid button canvas"},
}  # fmt: skip
HOVER = {
    "n": ".from .token",
    "m": ".matrix .panel > canvas",
    "w": ".from :is(.token, .picture canvas, .sound canvas)",
    "g": ".grid button",
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, found = tmp_path_factory.mktemp("pages"), {}
    for make in (translation, image, objects, sound, labels, long):
        found[make.__name__] = folder / f"{make.__name__}.html"
        make().save(found[make.__name__])
    return found


@pytest.mark.parametrize(
    "name, width, scheme",
    [
        ("translation", 1440, "light"),
        ("translation", 390, "dark"),
        ("image", 390, "light"),
        ("objects", 1440, "dark"),
        ("objects", 390, "light"),
        ("sound", 1440, "light"),
        ("sound", 390, "dark"),
        ("labels", 390, "light"),
        ("long", 1440, "light"),
    ],
)
def test_every_view_is_drawn(browser: Any, pages: dict[str, Path], name: str, width: int, scheme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 860}, color_scheme=scheme)
    page.set_default_timeout(10_000)
    problems: list[str] = []
    page.on("console", lambda line: problems.append(line.text) if line.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append("a dialog of the user's text"))
    page.on(
        "request", lambda request: None if request.url.startswith(("file:", "data:")) else problems.append(request.url)
    )
    page.goto(pages[name].as_uri())
    page.wait_for_selector("#main[data-ready]")
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    for key, selector in DRAWN[name].items():
        page.keyboard.press(key)
        page.wait_for_selector(f"#main {selector}")
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{name}, view {key}: {wide} pixels wide"
        assert page.evaluate(BLANK) == 0, f"{name}, view {key}: a canvas is blank"
        if key in HOVER:
            page.locator(f"#main {HOVER[key]}").first.hover()
            page.wait_for_selector("#tip:not([hidden])")
            assert page.locator("#readout").text_content()
    assert not problems, problems
    page.close()


# How many canvases of the page have one color only.
BLANK = """async () => {
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 30)));
  return [...document.querySelectorAll("#main canvas")].slice(0, 20).filter((canvas) => {
    const data = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    return !data.length || data.every((value) => value === data[0]);
  }).length;
}"""


def test_keys_and_clicks(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="light")
    page.goto(pages["translation"].as_uri())
    ready = lambda text: page.wait_for_selector(f'#main[data-ready="{text}"]')  # noqa: E731
    ready("grid cross 1 0")
    for key, wanted in {
        "m": "matrix cross 1 0", "ArrowRight": "matrix cross 1 1", "ArrowDown": "matrix cross 2 1", "ArrowUp": "matrix cross 1 1",
        "ArrowLeft": "matrix cross 1 0", "k": "matrix encoder 1 0", "w": "from encoder 1 0", "r": "rollout encoder 3 0",
    }.items():  # fmt: skip
        page.keyboard.press(key)
        ready(wanted)
    page.keyboard.press("w")
    ready("from encoder 3 0")
    for index, how in (
        (2, lambda: page.locator('.token[data-index="2"]').click()),
        (3, lambda: page.keyboard.press("]")),
    ):
        how()
        page.wait_for_selector(f'.token.chosen[data-index="{index}"]')
    assert (
        page.locator(".token.chosen").text_content() == NASTY.replace(" ", "·")
        and page.title() == f"transformer {NASTY} · attention"
    )
    first = page.locator(".top .value").first.text_content()
    page.keyboard.press("d")
    page.wait_for_selector('.switch button:last-child[aria-pressed="true"]')
    assert page.locator(".top .value").first.text_content() != first
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("?")
    assert page.locator("#keys kbd").count() >= 12
    page.keyboard.press("g")
    page.locator('.grid button[data-layer="2"][data-head="3"]').click()
    ready("matrix encoder 2 3")
    # The browser decompresses what Python computed, to within a step of 8 bits.
    found = page.evaluate("(async () => [...(await matrixOf(mapsOf('cross')[1], 3)).values])()")  # layer 2, head 3
    wanted = translation().weights(2, 3, "cross")
    assert np.abs(np.reshape(found, wanted.shape) - wanted).max() <= wanted.max() / 255
    mean = page.evaluate("(async () => [...(await matrixOf(mapsOf('encoder')[0], 0)).values])()")
    assert np.abs(np.reshape(mean, (5, 5)) - translation().weights(1, kind="encoder")).max() <= 1 / 255
    page.close()


def test_a_notebook_shows_the_page(browser: Any) -> None:
    """In a frame that may run scripts and nothing else."""
    page = browser.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.set_content(translation()._repr_html_())
    frame = page.frame_locator("iframe")
    frame.locator("#main .grid button").first.wait_for()
    assert page.locator("iframe").get_attribute("sandbox") == "allow-scripts" and not problems
    page.close()
