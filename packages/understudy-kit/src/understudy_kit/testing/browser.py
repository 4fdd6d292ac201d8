"""A headless browser that audits a page: texts too small, too pale, cut off or wider than the
screen.

Needs playwright (in the dev extra) and a Chromium or Chrome on PATH; tests are skipped where either
is missing.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ARGUMENTS = (
    "--no-sandbox",  # root needs it, in containers others, too
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
AUDIT = (Path(__file__).parent / "page_audit.js").read_text(encoding="utf-8")


@contextmanager
def browser() -> Iterator[Any]:
    """A headless browser; the test is skipped, with the reason, where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser on PATH ({', '.join(NAMES)})")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield opened
        opened.close()


def faults(browser: Any, page: Path, width: int, scheme: str, ready: str = "") -> list[str]:
    """Problems of a page on a screen `width` pixels wide, in the color scheme `light` or `dark`.

    A page with scripts is examined as soon as it has an element that matches the selector `ready`.

    UNDERSTUDY_SCREENSHOTS=FOLDER keeps the screenshots there.
    """
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    try:
        tab = context.new_page()
        found: list[str] = []
        tab.on("console", lambda message: found.append(f"console: {message.text}"))
        tab.on("pageerror", lambda error: found.append(f"error: {error}"))
        outside = ("file:", "data:")
        tab.on(
            "request",
            lambda r: None if r.url.startswith(outside) else found.append(f"request: {r.url}"),
        )
        tab.goto(page.as_uri())
        if ready:
            tab.wait_for_selector(ready, state="attached")
        folder = os.environ.get("UNDERSTUDY_SCREENSHOTS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            tab.screenshot(
                path=str(Path(folder) / f"{page.stem}-{width}-{scheme}.png"), full_page=True
            )
        found += tab.evaluate(AUDIT)
        tab.keyboard.press("Tab")  # the first element that the keyboard reaches must show its focus
        if not tab.evaluate(
            "['none', ''].indexOf(getComputedStyle(document.activeElement).outlineStyle) < 0"
        ):
            found.append("focus: the first element that the keyboard reaches is not outlined")
        return found
    finally:
        context.close()
