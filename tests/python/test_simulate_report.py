"""The HTML report in a real browser: every figure is laid out, and drawn where it is laid out."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import zlib

import pytest
import warploom as wl

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTH = 1200

# Appended to the page: where every figure lies, the page's height, and what overflows sideways.
PROBE = """<script id="probe-script">
const box = f => { const r = f.querySelector('svg').getBoundingClientRect();
                   return [Math.round(r.x), Math.round(r.y), Math.round(r.width), Math.round(r.height)]; };
const probe = {height: document.documentElement.scrollHeight, overflow: document.documentElement.scrollWidth,
               figures: Object.fromEntries([...document.querySelectorAll('figure')].map(f => [f.id, box(f)]))};
document.body.setAttribute('data-probe', JSON.stringify(probe));
</script>"""


def browse(*arguments: str) -> str:
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return done.stdout


def read_png(path) -> tuple[int, list[bytes]]:
    """Bytes a pixel and rows of an 8-bit PNG without interlacing (the PNG specification, sections 5 and 9)."""
    data = path.read_bytes()
    at, idat = 8, b""
    while at < len(data):
        (length,), kind = struct.unpack_from(">I", data, at), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, _, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", body)
            assert depth == 8
            assert interlace == 0
            size = {2: 3, 6: 4}[colour]
        idat += body if kind == b"IDAT" else b""
        at += 12 + length
    raw, stride, rows = zlib.decompress(idat), width * size, []
    before = bytearray(stride)
    for y in range(len(raw) // (stride + 1)):
        method, line = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1 : (y + 1) * (stride + 1)])
        for x in range(stride) if method else ():
            left = line[x - size] if x >= size else 0
            corner = before[x - size] if x >= size else 0
            if method == 1:
                predicted = left
            elif method == 2:
                predicted = before[x]
            elif method == 3:
                predicted = (left + before[x]) // 2
            else:
                guess = left + before[x] - corner
                predicted = min((left, before[x], corner), key=lambda value: abs(guess - value))
            line[x] = (line[x] + predicted) & 255
        rows.append(bytes(line))
        before = line
    return size, rows


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
def test_every_figure_is_drawn(tmp_path):
    html = wl.simulate_report()
    names = re.findall(r'<figure id="([^"]+)"', html)
    assert len(names) == len(wl.simulate_experiments())
    page = tmp_path / "report.html"
    page.write_text(html.replace("</body>", PROBE + "</body>"))

    dom = browse(f"--window-size={WIDTH},1000", "--dump-dom", page.as_uri())
    probe = json.loads(re.search(r'data-probe="([^"]*)"', dom).group(1).replace("&quot;", '"'))
    assert sorted(probe["figures"]) == sorted(names)
    assert probe["overflow"] <= WIDTH, "the page scrolls sideways"
    bottom = 0
    for name in names:
        x, y, width, height = probe["figures"][name]
        assert width > 600, name
        assert height > 100, name
        assert y >= bottom, f"{name} overlaps the figure before it"
        bottom = y + height
    assert bottom <= probe["height"]

    # The whole page in one screenshot, at half its size (the least that chromium takes): boxes of one colour keep it.
    screenshot = tmp_path / "report.png"
    size = f"--window-size={WIDTH},{probe['height']}"
    browse(size, "--force-device-scale-factor=0.5", f"--screenshot={screenshot}", page.as_uri())
    pixel, rows = read_png(screenshot)
    assert len(rows) * 2 >= bottom
    for name in names:
        x, y, width, height = (value // 2 for value in probe["figures"][name])
        colours = {row[i * pixel : i * pixel + 3] for row in rows[y : y + height] for i in range(x, x + width)}
        assert bytes.fromhex("f2a93b") in colours, f"{name}: no tensor core work is drawn"
        assert len(colours) > 8, name
