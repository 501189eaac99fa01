"""The pages in a real browser. Where none is installed the test is a slow one: deselected, not passed."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tacit import report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
needs_browser = pytest.mark.slow if BROWSER is None else lambda test: test


def in_browser(page: Path, profile: Path, *actions: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER, "install Chromium to run this test"
    quiet = ["disable-gpu", "disable-quic", "no-first-run", "disable-background-networking", "disable-sync"]
    quiet += ["disable-component-update", "no-sandbox", "virtual-time-budget=10000", "enable-logging=stderr"]
    command = [BROWSER, "--headless", *(f"--{flag}" for flag in quiet), f"--user-data-dir={profile}", *actions]
    return subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=180, check=True)


@needs_browser
def test_every_chart_is_drawn_without_a_word_in_the_console(make_run, tmp_path):
    names = ["</script><script>throw 1</script>", "B", "C"]
    page = report.write(make_run(names=names))
    charts = len(re.findall(r'class="chart"', page.read_text()))
    seen = in_browser(page, tmp_path / "profile", "--dump-dom")
    assert f'data-charts="{charts}"' in seen.stdout
    assert len(re.findall(r'<svg class="main-svg"', seen.stdout)) >= charts
    assert "could not be drawn;" not in re.sub(r"<script>.*?</script>", "", seen.stdout, flags=re.DOTALL)
    assert "CONSOLE" not in seen.stderr


@needs_browser
def test_no_page_is_wider_than_a_phone(make_run, tmp_path):
    """A browser window is never narrower than 500 pixels: every page is put into a frame of 390."""
    run = make_run(names=["a-silo-with-a-name-that-is-longer-than-a-phone-is-wide", "B", "C"])
    report.write(run)
    report.write_sheet(run)
    report.compare([run, run], run / "comparison.html")
    frames, pages = tmp_path / "frames.html", ("report", "local", "sheet", "comparison")
    contents = {page: html.escape((run / f"{page}.html").read_text()) for page in pages}
    width = "f => f.id + '=' + f.contentDocument.documentElement.scrollWidth"
    script = f"document.title = 'widths ' + [...document.querySelectorAll('iframe')].map({width}).join(' ')"
    frames.write_text(
        "".join(
            f'<iframe id="{page}" style="width:390px;height:9000px;border:0" srcdoc="{content}"></iframe>'
            for page, content in contents.items()
        )
        + f"<script>setTimeout(() => {{ {script} }}, 4000)</script>"
    )
    seen = in_browser(frames, tmp_path / "profile", "--dump-dom")
    found = re.search(r"<title>widths (.*?)</title>", seen.stdout)
    assert found is not None
    widths = {page: int(pixels) for page, pixels in (part.split("=") for part in found.group(1).split())}
    assert widths.keys() == set(pages)
    assert all(200 < pixels <= 390 for pixels in widths.values()), widths
