"""A real browser for the page tests: Chromium, driven through the pipe of its debugging protocol."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = [
    "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
    "disable-sync", "disable-component-update", "hide-scrollbars", "remote-debugging-pipe",
]  # fmt: skip


class Browser:
    """One tab. ``requests``: addresses that it asked for; ``said``: what it wrote to the console."""

    def __init__(self, profile: Path) -> None:
        assert BROWSER, "install Chromium to run this test"
        to_child, self._to = os.pipe()
        self._from, from_child = os.pipe()
        # the browser reads from descriptor 3 and writes to descriptor 4; copies above 9 are not overwritten
        inner = [os.dup(fd) for fd in (to_child, from_child)]
        command = [BROWSER, *(f"--{flag}" for flag in FLAGS), f"--user-data-dir={profile}", "about:blank"]
        script = f'exec "$@" 3<&{inner[0]} 4>&{inner[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command], pass_fds=inner, stderr=subprocess.DEVNULL
        )
        for fd in (to_child, from_child, *inner):
            os.close(fd)
        self._number, self._rest, self._session = 0, b"", ""
        self.requests: list[str] = []
        self.said: list[str] = []
        tab = next(target for target in self.call("Target.getTargets")["targetInfos"] if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=tab["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)  # the browser ends when its pipe does
        self._process.wait(timeout=30)
        os.close(self._from)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, f"{method}: {found.get('error')}"
                return found["result"]

    def _next(self, seconds: float = 60) -> dict[str, Any]:
        """The next message; events are noted on the way."""
        until = time.monotonic() + seconds
        while b"\0" not in self._rest:
            assert select.select([self._from], [], [], max(0, until - time.monotonic()))[0], "the browser is silent"
            self._rest += os.read(self._from, 1 << 20)
        line, self._rest = self._rest.split(b"\0", 1)
        found = json.loads(line)
        params = found.get("params", {})
        if found.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif found.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.said.append(json.dumps(params))
        return found

    def open(self, page: Path, width: int = 1280, *, dark: bool = False) -> None:
        """Show a page in a window of this width, and wait until it is drawn."""
        self.requests.clear()
        self.said.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.call("Page.navigate", url=page.as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def point(self, element: str, across: float = 0.5, down: float = 0.5) -> tuple[float, float]:
        """A place within an element (an expression), brought into view."""
        x, y, width, height = self.run(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect();"
            f" return [r.x, r.y, r.width, r.height]; }})({element})"
        )
        return x + across * width, y + down * height

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, file: Path) -> Path:
        """The whole page as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        file.write_bytes(base64.b64decode(data))
        return file
