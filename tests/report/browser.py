"""A headless Chromium, driven over its DevTools pipe: real keys, real clicks, and every error of the console."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
KEYS = {
    "Enter": ("\r", 13),
    "Tab": ("", 9),
    "ArrowRight": ("", 39),
    "ArrowLeft": ("", 37),
    "End": ("", 35),
    "Home": ("", 36),
}
ANSWER_SECONDS = 60
# The browser reads commands from descriptor 3 and answers on 4. A zero byte ends each message.
START = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """A browser with one page."""

    def __init__(self, profile: Path) -> None:
        to_browser, self._commands = os.pipe()
        self._messages, from_browser = os.pipe()
        assert CHROMIUM is not None
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
        options += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(to_browser), str(from_browser), CHROMIUM, *options],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        os.close(self._commands)  # the browser ends when its command pipe closes
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._messages)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command, wait for its answer, and note the events in between."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False, timeout: float = 120) -> None:
        """Load a file and wait until its script has run."""
        self.complaints.clear()
        self.requests.clear()
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + timeout
        while not self.run("document.documentElement?.dataset.ready === 'true'"):
            if time.monotonic() > end:
                raise TimeoutError(f"{path} is not ready; the console says {self.complaints}")
            time.sleep(0.02)
        self.settle()

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description"))
        return answer["result"].get("value")

    def settle(self) -> None:
        """Wait until two frames have been drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def press(self, key: str, times: int = 1) -> None:
        """Press a key on whatever has the focus."""
        text, code = KEYS.get(key, (key, ord(key[0].upper())))
        for _ in range(times):
            pressed = {"key": key, "code": key, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", type="keyDown", **({"text": text} if text else {}), **pressed)
            self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)
        self.settle()

    def point(self, selector: str, x: float = 0.5, y: float = 0.5, click: bool = False) -> None:
        """Move the pointer over an element, at fractions of its width and height, and click there if asked."""
        position = (
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            "e.scrollIntoView({block: 'center', behavior: 'instant'}); const b = e.getBoundingClientRect(); "
            f"return [b.left + {x} * b.width, b.top + {y} * b.height]; }})()"
        )
        left, top = self.run(position)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=left, y=top)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=left, y=top, button="left", clickCount=1)
        self.settle()

    def screenshot(self, path: Path, selector: str | None = None) -> None:
        """Save the whole page, or one element of it, as PNG."""
        options: dict[str, Any] = {"captureBeyondViewport": True}
        if selector:
            box = self.run(
                f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect(); "
                "return {x: b.left + scrollX, y: b.top + scrollY, width: b.width, height: b.height, scale: 1}; })()"
            )
            options["clip"] = box
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **options)["data"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._messages], [], [], ANSWER_SECONDS)[0]:
                raise TimeoutError(f"no answer from the browser for {ANSWER_SECONDS} s")
            data = os.read(self._messages, 1 << 20)
            if not data:
                raise RuntimeError("the browser has ended")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(line)

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
