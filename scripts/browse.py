"""Opens every page of the built site in headless Chromium, and names those that are wider than it.

    make browse                                 # builds the site first
    python scripts/browse.py --pictures DIR     # also saves pictures of the pages

Each page is opened on a desktop (1280 pixels) and on a phone (390), in light and in dark. A page
that can be scrolled sideways is an error: a wide table or listing has to scroll by itself. So is an
image that does not load, and a table of up to three columns that has to be scrolled to be read.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SITE = ROOT / "site"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTHS = {"desktop": 1280, "phone": 390}
SCHEMES = {"light": "1", "dark": "0"}
"""Values of Blink's setting preferredColorScheme."""
SECONDS = 180
MAX_HEIGHT = 15000
MAX_WHOLE_COLUMNS = 3
"""Tables of up to so many columns are whole on a phone; those of numbers may scroll sideways."""
HARNESS = """<!doctype html><body style="margin:0"><script>
const pages = {pages}, width = {width}, found = {{}};
async function open(page) {{
  const frame = document.createElement("iframe");
  frame.style = `width:${{width}}px;height:900px;border:0;display:block`;
  frame.src = "/" + page;
  document.body.append(frame);
  await new Promise(done => frame.onload = done);
  const inside = frame.contentDocument, root = inside.documentElement;
  const images = [...inside.images].filter(image => image.checkVisibility());
  images.forEach(image => image.loading = "eager");
  await Promise.all(images.map(image => image.decode().catch(() => 0)));
  found[page] = {{
    wide: root.scrollWidth, high: inside.body.scrollHeight,
    cut: [...inside.querySelectorAll("article table")].filter(table =>
      table.rows[0].cells.length <= {columns} && table.checkVisibility() &&
      table.getBoundingClientRect().left + table.scrollWidth > root.clientWidth
    ).map(table => table.rows[table.rows.length > 1 ? 1 : 0].cells[0].textContent.trim()),
    broken: images.filter(image => !image.naturalWidth).map(image => image.src),
  }};
  return frame;
}}
(async () => {{
  for (const page of pages) {{
    const frame = await open(page);
    if (pages.length > 1) frame.remove(); else frame.style.height = found[page].high + "px";
  }}
  await fetch("/found", {{method: "POST", body: JSON.stringify(found)}});
}})();
</script>"""


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the site, and what asks the browser about its pages; takes the browser's answer."""

    harness = b""
    answers: queue.Queue[bytes] = queue.Queue()

    def do_GET(self) -> None:
        if self.path != "/harness.html":
            with contextlib.suppress(ConnectionError):  # the browser has left the page
                super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.harness)

    def do_POST(self) -> None:
        self.answers.put(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def served() -> Iterator[str]:
    handler = functools.partial(_Handler, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/harness.html"
        server.shutdown()


@contextlib.contextmanager
def browser(url: str, scheme: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A headless Chromium that shows ``url``; all of its processes end with the context."""
    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if program is None:
        raise SystemExit("no Chromium here: sudo apt install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *(f"--user-data-dir={profile}", f"--blink-settings=preferredColorScheme={scheme}"),
                *(*options, url),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def harness(pages: list[str], width: int) -> bytes:
    columns = MAX_WHOLE_COLUMNS
    return HARNESS.format(pages=json.dumps(pages), width=width, columns=columns).encode()


def look(url: str, pages: list[str], width: int, scheme: str) -> dict[str, dict[str, Any]]:
    """Width, height, tables that are cut and broken images of each page."""
    _Handler.harness = harness(pages, width)
    with browser(url, scheme, "--window-size=1280,900"):
        return json.loads(_Handler.answers.get(timeout=SECONDS))


def picture(url: str, page: str, width: int, scheme: str, high: int, path: Path) -> None:
    _Handler.harness = harness([page], width)
    size = f"--window-size={max(width, 500)},{min(high, MAX_HEIGHT)}"
    with browser(url, scheme, size, f"--screenshot={path}", "--timeout=5000") as process:
        process.wait(SECONDS)
    _Handler.answers.get(timeout=SECONDS)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="*", help="addresses in site/; default: all")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="save a picture of each")
    options = parser.parse_args()
    every = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("index.html"))
    pages = options.pages or every
    if not pages:
        raise SystemExit(f"no pages in {SITE}: make docs builds them")
    wrong = []
    with served() as url:
        for device, width in WIDTHS.items():
            for name, scheme in SCHEMES.items():
                found = look(url, pages, width, scheme)
                for page, facts in found.items():
                    if facts["wide"] != width:
                        wrong.append(f"{page}: {facts['wide']} pixels on a {device} of {width}")
                    wrong += [
                        f"{page}: the table of '{first}' is cut on a {device} of {width}"
                        for first in facts["cut"]
                    ]
                    wrong += [f"{page}: no image {source}" for source in facts["broken"]]
                    if options.pictures:
                        options.pictures.mkdir(exist_ok=True, parents=True)
                        file = f"{page.removesuffix('index.html').replace('/', '-')}{device}-{name}"
                        path = options.pictures / f"{file}.png"
                        picture(url, page, width, scheme, int(facts["high"]), path)
    print("\n".join(dict.fromkeys(wrong)) or f"{len(pages)} pages fit a desktop and a phone")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
