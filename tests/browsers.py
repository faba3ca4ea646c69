"""A headless browser, driven through a pipe in its own protocol: real keys, real clicks."""

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MOUSE = "primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4"  # as if there were one
FLAGS = ["--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-background-networking"]
FLAGS += [f"--blink-settings={MOUSE}"]
PATIENCE = 30  # seconds
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "Home": 36, "ArrowDown": 40}


def installed():
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One process; each page has a store, a clipboard permission and a size of its own."""

    def __init__(self, program: str, home: Path) -> None:
        root = ["--no-sandbox"] * (os.geteuid() == 0)
        command = [program, *FLAGS, *root, f"--user-data-dir={home}", "--remote-debugging-pipe"]
        (read, self._out), (self._in, write) = os.pipe(), os.pipe()
        # It reads from 3 and writes to 4, which either end may be.
        shell = ["bash", "-c", f'exec 203<&{read} 204>&{write} 3<&203 4>&204; exec "$@"', "browser"]
        with open(home.with_suffix(".err"), "wb") as errors:
            self.process = subprocess.Popen(shell + command, pass_fds=(read, write), stdout=errors, stderr=errors)
        os.close(read)
        os.close(write)
        self._rest, self._number, self.pages = b"", 0, {}

    def call(self, method: str, session: str | None = None, **parameters: Any):
        """Return the result of a call; events that come before go to their pages."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": parameters}
        if session:
            asked["sessionId"] = session
        left = memoryview(json.dumps(asked).encode() + b"\0")
        while left:
            left = left[os.write(self._out, left) :]
        while (message := self._message()).get("id") != self._number:
            if message.get("sessionId") in self.pages:
                self.pages[message["sessionId"]].handle_event(message["method"], message["params"])
        assert "error" not in message, (method, message)
        return message["result"]

    def _message(self):
        while b"\0" not in self._rest:
            assert select.select([self._in], [], [], 6 * PATIENCE)[0], "the browser does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser is gone"
            self._rest += part
        whole, _, self._rest = self._rest.partition(b"\0")
        return json.loads(whole)

    def page(self, width: int = 1200, height: int = 800, scheme: str = "light", before: str = ""):
        """A window of its own; `before` is a script that runs in it before any other."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
        self.call("Browser.grantPermissions", permissions=permissions, browserContextId=context)
        page = self.pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        page.call("Page.addScriptToEvaluateOnNewDocument", source=before)
        page.resize(width, height, scheme)
        return page

    def close(self) -> None:
        self.call("Browser.close")
        self.process.wait(PATIENCE)
        os.close(self._in)
        os.close(self._out)


class Page:
    """errors: exceptions of the page, and errors that the browser reports, such as a breach of its policy."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self.session, self.errors = browser, session, []

    def call(self, method: str, **parameters: Any):
        return self.browser.call(method, self.session, **parameters)

    def handle_event(self, event: str, about: dict) -> None:
        if event == "Runtime.exceptionThrown":
            self.errors.append(about["exceptionDetails"]["exception"].get("description", about))
        elif event == "Runtime.consoleAPICalled" and about["type"] == "error":
            self.errors.append([argument.get("description", argument.get("value")) for argument in about["args"]])
        elif event == "Log.entryAdded" and about["entry"]["level"] == "error" and about["entry"]["source"] != "network":
            self.errors.append(about["entry"]["text"])

    def resize(self, width: int, height: int, scheme: str = "light") -> None:
        mobile = width < 600
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setTouchEmulationEnabled", enabled=mobile)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def goto(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait(f"location.href.startsWith({json.dumps(address)}) && document.readyState === 'complete'")

    def js(self, expression: str):
        """Return the JSON value of an expression, or of its promise."""
        asked = {"expression": expression, "awaitPromise": True, "returnByValue": True, "userGesture": True}
        done = self.call("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in done, (expression, done["exceptionDetails"])
        return done["result"].get("value")

    def wait(self, expression: str):
        """Return the value of an expression as soon as it is true."""
        end = time.monotonic() + PATIENCE
        while not (value := self.js(expression)):
            assert time.monotonic() < end, f"{expression} did not come true: {self.js('document.body.innerText')}"
            time.sleep(0.01)
        return value

    def text(self, selector: str):
        return self.js(f"document.querySelector({json.dumps(selector)}).innerText")

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str, shift: bool = False) -> None:
        about = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 8 * shift}
        self.call("Input.dispatchKeyEvent", type="keyDown", text="\r" if key == "Enter" else "", **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def click(self, selector: str) -> None:
        """Click the middle of an element, which nothing may cover once the mouse is there."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.wait(f"!!{found}")
        self.js(f"{found}.scrollIntoView({{ block: 'nearest' }})")
        middle = f"(({{ x, y, width, height }}) => [x + width / 2, y + height / 2])({found}.getBoundingClientRect())"
        self._mouse("mouseMoved", *self.js(middle), button="none")  # hovering may show a button
        x, y = self.js(middle)
        assert self.js(f"{found}.contains(document.elementFromPoint({x}, {y}))"), f"{selector} is covered"
        for kind in ("mousePressed", "mouseReleased"):
            self._mouse(kind, x, y, button="left")

    def _mouse(self, kind: str, x: float, y: float, button: str) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=int(button == "left"))

    def close(self) -> None:
        self.call("Page.close")
