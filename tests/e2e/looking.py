"""What is wrong with how something looks: cut off, one over the other, empty, hard to read."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Locator, Page

from tests.e2e.harness import Notebook
from tests.environments import node_modules

THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
_UNTIDY = Path(__file__).with_name("untidy.js").read_text(encoding="utf-8")
_AXE = """
async root => {
  // What the application's page clips is taken for hidden, and its contrast is not measured.
  const overflow = document.body.style.overflow;
  document.body.style.overflow = 'visible';
  const found = await axe.run(root, { runOnly: ['wcag2a', 'wcag2aa'] });
  document.body.style.overflow = overflow;
  const measured = [...found.passes, ...found.violations].some(v => v.id === 'color-contrast');
  return [
    ...(measured ? [] : [['color-contrast', 'of nothing in sight was it measured']]),
    ...found.violations
      .map(v => [v.id, ...v.nodes.map(n => n.html.slice(0, 200) + ' ' + n.failureSummary)])
  ];
}
"""


def in_theme(notebook: Notebook, name: str) -> None:
    """Give the application its light or dark theme."""
    notebook.command("apputils:change-theme", theme=THEMES[name])
    notebook.page.wait_for_function(
        "dark => document.body.dataset.jpThemeLight === String(!dark)", arg=name == "dark"
    )
    notebook.page.wait_for_timeout(300)  # the style sheet follows


def untidy(panel: Locator, width: int) -> list[str]:
    """Return what is cut off, too wide or over something else where a panel is this wide."""
    return panel.evaluate(_UNTIDY, width)


def inked(part: Locator) -> float:
    """Return the share of what is shown that is not its background."""
    picture = Image.open(BytesIO(part.screenshot())).convert("RGB")
    colours = picture.getcolors(maxcolors=picture.width * picture.height) or []
    most = max(count for count, _ in colours)
    return 1 - most / (picture.width * picture.height)


def violations(part: Locator) -> list[list[str]]:
    """Return what is wrong for people who cannot see well, by axe."""
    if not part.page.evaluate("'axe' in window"):
        part.page.evaluate(npm("axe-core/axe.min.js").read_text(encoding="utf-8"))
    return part.evaluate(_AXE)


def npm(path: str) -> Path:
    """Return a script that tests load into a page; none of them is part of the product."""
    return node_modules("looks", "axe-core@4", "markdown-it@14", "dompurify@3") / path


def cropped(page: Page, *parts: Locator, margin: int = 8) -> dict[str, float]:
    """Return the part of a page that holds these, as a screenshot's `clip`."""
    boxes = [box for part in parts if (box := part.bounding_box())]
    left = min(box["x"] for box in boxes) - margin
    top = min(box["y"] for box in boxes) - margin
    right = max(box["x"] + box["width"] for box in boxes) + margin
    bottom = max(box["y"] + box["height"] for box in boxes) + margin
    size = page.viewport_size or {"width": 1, "height": 1}
    left, top = max(left, 0), max(top, 0)
    width, height = min(right, size["width"]) - left, min(bottom, size["height"]) - top
    return {"x": left, "y": top, "width": width, "height": height}
