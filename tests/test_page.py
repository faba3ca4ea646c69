"""The HTML card of a small real run, in a real browser: on a phone and a desk, by day and by night."""

import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from functools import partial
from html import unescape
from pathlib import Path

import pytest
from base_runs import Base, _stage
from bundles import world_tasks, write_bundle
from forks import Forked
from outcomes import leave

from nanochat.page import POLICY, page
from nanochat.report import write
from nanochat.sections import read_card

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
EVIL = '<script>document.title = "run"</script><img src="/stolen" onerror="x">&amp;'
LONG = "x" * 200  # a word that no line has room for
VIEWS = [(width, scheme) for width in (390, 1200) for scheme in ("light", "dark")]
# Opens the card in a frame of a width and tells what is there. A card is a frame's document, not a script's prey: the
# frame's own policy forbids it all scripts, and this page, of the same server, looks in from outside.
LOOK = """<!doctype html><meta charset="utf-8"><style>body {{ margin: 0 }} iframe {{ border: 0 }}</style>
<iframe width="{width}" height="1200" src="/report.html"></iframe><pre></pre><script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument, all = [...page.querySelectorAll("main *")];
  const inside = element => element.closest(".table, details:not([open]), svg");
  const cut = text => {{
    const [word, plot] = [text, text.closest("svg")].map(element => element.getBoundingClientRect());
    return word.left < plot.left - 1 || word.right > plot.right + 1 || word.bottom > plot.bottom + 1;
  }};
  const style = page.defaultView.getComputedStyle(page.body);
  const boxes = [...page.querySelectorAll(".table")];
  document.querySelector("pre").textContent = JSON.stringify({{
    width: page.documentElement.clientWidth, scroll: page.documentElement.scrollWidth,
    out: all.filter(e => !inside(e) && e.getBoundingClientRect().right > {width} + .5).map(e => e.outerHTML),
    scrolling: boxes.filter(box => box.scrollWidth > box.clientWidth).length, tables: boxes.length,
    paper: style.backgroundColor, ink: style.color, text: page.querySelector("main").innerText, title: page.title,
    made: page.querySelectorAll("script, img, iframe, object").length,
    lines: [...page.querySelectorAll(".line")].map(e => page.defaultView.getComputedStyle(e).stroke),
    cut: [...page.querySelectorAll("svg text")].filter(cut).map(e => e.textContent),
    letters: [...page.querySelectorAll("svg text")].map(e => e.getBoundingClientRect().height),
    anchors: [...page.querySelectorAll("nav a")].map(a => !!page.querySelector(a.getAttribute("href"))),
  }});
}};
</script>"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        pytest.skip(f"no browser on this machine: install one of {', '.join(BROWSERS)}")
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A base folder: a model trained, its loss and CORE measured, one outcome that is damaged and one that is evil."""
    base = Base(tmp_path_factory.mktemp("run"))
    base.run("small", "--max-seq-len=128", "--num-iterations=12", "--total-batch-size=512")
    write_bundle(base.folder / "mirror", world_tasks(7))
    variables = {"NANOCHAT_BASE_DIR": str(base.folder), "NANOCHAT_HUB": str(base.folder / "mirror")}
    for stage in (["base_loss", "--eval-bytes=2000"], ["base_eval"]):
        words = (f"scripts.{stage[0]}", "--tag=small", "--dtype=fp32", *stage[1:])
        Forked(base.folder / f"job-{stage[0]}", _stage, None, *words, **variables).done()
    table = {"title": EVIL, "columns": [[EVIL, ""], ["n", ",d"]], "rows": [[EVIL, 3], [LONG, None]]}
    curve = {"title": EVIL, "x": EVIL, "y": EVIL, "series": {EVIL: [[0, 1], [0.5, 1.5]], "b": [[0, 1], [1, 2]]}}
    evil = {"metrics": {EVIL: EVIL, LONG: LONG}, "tables": [table], "curves": [curve]}
    leave(base.folder, "<b>", **evil, config={"data": EVIL}, card=["data"])
    leave(base.folder, "tok_eval").write_text('{"stage": ')
    return base.folder


@pytest.fixture(scope="module")
def served(run, tmp_path_factory):
    """The card, and pages that look at it, behind a server that knows what it was asked for."""
    folder, asked = tmp_path_factory.mktemp("served"), []
    write(run, folder / "report.md")
    for width in (390, 1200):
        (folder / f"look-{width}.html").write_text(LOOK.format(width=width), encoding="utf-8")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_request(self, code="-", size="-"):
            asked.append(self.path)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked, folder
    server.shutdown()
    thread.join()
    server.server_close()


def open_in(browser: str, home: Path, scheme: str, *words: str) -> str:
    """What a headless browser prints, with a profile of its own."""
    flags = [
        "--headless",
        "--disable-gpu",
        "--hide-scrollbars",
        "--no-first-run",
        f"--user-data-dir={home / 'profile'}",
    ]
    flags += ["--no-sandbox"] * (os.geteuid() == 0)  # root has none
    flags += ["--disable-background-networking", f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"]
    done = subprocess.run([browser, *flags, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_a_reader_sees_all_of_it(browser, served, tmp_path, width, scheme):
    address, asked, _ = served
    asked.clear()
    said = open_in(browser, tmp_path, scheme, "--window-size=1300,1300", "--dump-dom", f"{address}/look-{width}.html")
    assert set(asked) <= {f"/look-{width}.html", "/report.html", "/favicon.ico"}  # the last for the page that looks
    seen = json.loads(unescape(re.search(r"<pre>(.*)</pre>", said, re.DOTALL)[1]))
    assert (seen["width"], seen["scroll"], seen["out"]) == (width, width, [])
    assert set(seen["cut"]) == {EVIL}  # no other word of a picture is longer than there is room for
    assert seen["tables"] == 4
    assert seen["scrolling"] > 0  # a table with so long a word is wider than any screen, and scrolls in its box
    paper, ink = (sum(map(int, re.findall(r"\d+", seen[part])[:3])) / 3 for part in ("paper", "ink"))
    assert (paper > 200 > 80 > ink) if scheme == "light" else (paper < 80 < 200 < ink), seen
    assert len(set(seen["lines"])) == 2
    assert "none" not in seen["lines"]
    assert min(seen["letters"]) > 10
    assert seen["anchors"] == [True] * len(seen["anchors"])
    assert (seen["title"], seen["made"]) == ("nanochat training report", 0)
    for words in ("Base model training", "Final validation bpb", "world_people", "Wall clock time", EVIL, LONG):
        assert words in seen["text"], words
    assert "tok_eval/default/outcome.json is damaged" in seen["text"]


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_a_picture_is_taken(browser, served, tmp_path, width, scheme):
    """Kept below pytest's folder, to be looked at: the card as a file, which no server is behind."""
    shot, card = tmp_path / f"card-{width}-{scheme}.png", served[2] / "report.html"
    open_in(browser, tmp_path, scheme, f"--window-size={width},3000", f"--screenshot={shot}", card.as_uri())
    header = shot.read_bytes()[:24]
    assert header[1:4] == b"PNG"
    assert (int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")) == (width, 3000)
    assert shot.stat().st_size > 50_000  # of an empty page it is a tenth of that


def test_it_asks_for_nothing_and_runs_nothing(run):
    """What a browser is told, whether or not there is one here."""
    text = page(read_card(run))
    assert POLICY in text.partition("<style>")[0]
    assert not re.search(r"<script|<img|<iframe|\son\w+=\"|url\(|@import|https?://", text.replace("http-equiv", ""))
    assert "&lt;script&gt;" in text
    assert all(kind in text for kind in ("<details><summary>Settings", "prefers-color-scheme: dark", 'class="track"'))
