"""The report in a real browser: nothing overflows, bars have the heights that the figures give them, and they are drawn."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import zlib
from collections.abc import Sequence
from functools import cache
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.lab.deployed import wsllama

DATA = Path(__file__).parents[1] / "data" / "records"
NAMES = ("chromium-headless-shell", "chromium", "google-chrome")
HOSTILE = '<script>document.title="taken"</script><img src=x onerror="document.title=\'taken\'">&"'
VIEWPORTS = {"phone": (390, 844), "desktop": (1280, 900)}

# Run in the page itself; what it finds is read from the document that the browser prints.
MEASURE = """<script>
const box = (e) => {
  const r = e.getBoundingClientRect(), title = e.querySelector("title");
  return {x: r.x + scrollX, y: r.y + scrollY, width: r.width, height: r.height,
          color: getComputedStyle(e).fill, says: title ? title.textContent : ""};
};
const all = (what, where = document) => [...where.querySelectorAll(what)];
const row = (r) => ({text: r.innerText, bar: box(r.querySelector(".speed")), track: box(r.querySelector(".track"))});
const page = document.documentElement;
const found = {
  stacks: Object.fromEntries(all("#memory svg").map(s => [s.getAttribute("aria-label"), all(".segment", s).map(box)])),
  speeds: Object.fromEntries(all("#speed [data-scenario]").map(c => [c.dataset.scenario, all(".row", c).map(row)])),
  scroll: page.scrollWidth, width: innerWidth, height: page.scrollHeight, title: document.title, text: document.body.innerText,
  scripts: document.scripts.length, loaded: performance.getEntriesByType("resource").length,
  beyond: all("body *").filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 200)),
  background: getComputedStyle(document.body).backgroundColor,
};
const pre = document.createElement("pre");
pre.id = "found";
pre.textContent = JSON.stringify(found);
document.body.append(pre);
</script></body>"""


PIXELS = """<script>
onload = () => {
  const image = document.images[0], canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  const pen = canvas.getContext("2d");
  pen.drawImage(image, 0, 0);
  const found = [[canvas.width, canvas.height], ...POINTS.map(([x, y]) => [...pen.getImageData(x, y, 1, 1).data].slice(0, 3))];
  document.body.innerHTML = '<pre id="found">' + JSON.stringify(found) + "</pre>";
};
</script>"""


@cache
def browser() -> str:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.skip("there is no Chromium here: apt-get install chromium-headless-shell")
    return str(found)


def chromium(page: Path, size: tuple[int, int], *words: str) -> str:
    command = [
        browser(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={page.parent / 'profile'}",
    ]
    command += [f"--window-size={size[0]},{size[1]}", *words, page.as_uri()]
    p = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800)
    assert p.returncode == 0, p.stderr
    return p.stdout


def measured(page: Path, size: tuple[int, int], *words: str) -> dict[str, Any]:
    asking = page.with_name(f"asking-{page.name}")
    asking.write_text(page.read_text().replace("</body>", MEASURE))
    found = re.search(r'<pre id="found">(.*?)</pre>', chromium(asking, size, "--dump-dom", *words), re.S)
    assert found
    document: dict[str, Any] = json.loads(unescape(found[1]))
    return document


def pixels(shot: Path, points: Sequence[tuple[float, float]], folder: Path) -> list[tuple[int, ...]]:
    """Width and height of a picture, then the colours at points of it, as the browser reads its own PNG."""
    page = folder / "pixels.html"
    image = base64.b64encode(shot.read_bytes()).decode()
    page.write_text(f'<body><img src="data:image/png;base64,{image}">{PIXELS.replace("POINTS", json.dumps(points))}</body>')
    found = re.search(
        r'<pre id="found">(.*?)</pre>', chromium(page, (400, 400), "--dump-dom", "--virtual-time-budget=20000"), re.S
    )
    assert found
    return [tuple(one) for one in json.loads(found[1])]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the examples; what they name the desk is hostile."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "records").mkdir()
    for path in DATA.glob("*.json"):
        text = path.read_text().replace('"label": "no GPU"', json.dumps({"label": HOSTILE})[1:-1])
        (folder / "records" / path.name).write_text(text)
    p = wsllama("report", str(folder / "records"), "-o", str(folder / "report.html"))
    assert (p.returncode, p.stdout) == (0, f"{folder}/report.html: 4 records of 3 hosts\n"), p.stderr
    return folder / "report.html"


@pytest.mark.parametrize("name", VIEWPORTS)
def test_page(page: Path, name: str) -> None:
    size = VIEWPORTS[name]
    found = measured(page, size)
    assert found["width"] == size[0]
    assert (found["scroll"], found["beyond"]) == (size[0], [])
    assert (found["title"], found["scripts"], found["loaded"]) == ("Benchmarks of 3 hosts", 1, 0)  # the script is this test's
    assert HOSTILE in found["text"]
    for said in ("laptop", "NVIDIA GeForce RTX 4070 Laptop GPU", "not reported", "Its release was not planned.", "7be09c1f5"):
        assert said in found["text"]
    stacks(found)
    speeds(found)
    drawn(page, found)


def stacks(found: dict[str, Any]) -> None:
    """Of the laptop: 8188 MiB of VRAM are 220 pixels; its log shows 4963.1, 640, 62.81 and 501 MiB, and 7177 were held."""
    assert list(found["stacks"]) == ["VRAM of desk-1", "RAM of desk-1", "VRAM of laptop", "RAM of laptop", "RAM of server-1"]
    column = found["stacks"]["VRAM of laptop"]
    mib = [4963.1, 640, 62.81, 501.0, 7177 - 6166.91, 8188 - 7177]
    assert [bar["height"] for bar in column] == pytest.approx([220 * part / 8188 for part in mib], abs=0.05)
    assert [bar["says"].partition(":")[0] for bar in column] == [
        "weights",
        "KV cache",
        "state",
        "compute",
        "Windows, CUDA, others",
        "free",
    ]
    assert column[-1]["y"] + 220 == pytest.approx(column[0]["y"] + column[0]["height"], abs=0.05)
    for below, above in pairwise(column):
        assert above["y"] + above["height"] == pytest.approx(below["y"], abs=0.05)


def speeds(found: dict[str, Any]) -> None:
    """Of all runs the desk's fastest is the widest: 256 tokens at 164.4 tokens/s times 1.01."""
    rows = found["speeds"]["answer"]
    assert [" ".join(row["text"].split(",")[:1]) for row in rows] == ["desk-1", "laptop", "laptop", "server-1"]
    widths = [row["bar"]["width"] / row["track"]["width"] for row in rows]
    assert widths == pytest.approx([rate / (164.4 * 1.01) for rate in (164.4, 24.6, 31.8, 14.2)], abs=0.001)


def drawn(page: Path, found: dict[str, Any]) -> None:
    """In the picture each bar has its colour in its middle, and the ground is the page's."""
    shot = page.with_name("page.png")
    chromium(page, (found["width"], found["height"]), f"--screenshot={shot}")
    bars = [bar for column in found["stacks"].values() for bar in column if bar["height"] > 4]
    bars += [row["bar"] for rows in found["speeds"].values() for row in rows]
    assert len(bars) >= 20
    points = [(2, 2), *((bar["x"] + 3, bar["y"] + bar["height"] / 4) for bar in bars)]
    size, *seen = pixels(shot, points, page.parent)
    assert size == (found["width"], found["height"])
    assert seen == [rgb(found["background"]), *(rgb(bar["color"]) for bar in bars)]


def rgb(color: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", color)[:3]))


def test_at_night_the_page_is_dark(page: Path) -> None:
    found = measured(page, (390, 844), "--blink-settings=preferredColorScheme=0")
    assert max(rgb(found["background"])) < 40
    assert found["scroll"] == 390


def test_on_paper_it_is_light_and_its_bars_have_their_colours(page: Path) -> None:
    """Also where the screen is dark; by what the browser's own PDF paints."""
    paper = page.with_name("page.pdf")
    chromium(
        page, VIEWPORTS["desktop"], "--blink-settings=preferredColorScheme=0", "--no-pdf-header-footer", f"--print-to-pdf={paper}"
    )
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", paper.read_bytes(), re.S)
    drawn = b"\n".join(zlib.decompressobj().decompress(one) for one in streams)
    painted = {
        tuple(round(float(part) * 255) for part in found.split()[:3])
        for found in re.findall(rb"[\d.]+ [\d.]+ [\d.]+ rg\b", drawn)
    }
    light = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", page.read_text().partition("@media")[0]))
    names = ("ink", "soft", "track", "weights", "kv", "recurrent", "compute", "others", "mark")
    assert {name: tuple(bytes.fromhex(light[name][1:])) in painted for name in names} == dict.fromkeys(names, True)
