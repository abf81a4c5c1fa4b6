# SPDX-License-Identifier: Apache-2.0
"""A page in a Chromium without a window, with a mouse and a keyboard: the DevTools protocol over a pipe, which needs no package."""
import base64
import itertools
import json
import os
import subprocess

# DevTools wants the code of a key that is no character; a character carries itself as text.
KEY_CODES = {"Tab": 9, "Enter": 13, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
SHIFT = 8


class Browser:
    """with Browser(PROGRAM, FOLDER) as browser: browser.open(page); ..."""

    def __init__(self, program, folder, width=1280, height=2000):
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()

        def take_pipes():  # the browser reads descriptor 3 and writes 4
            reading, writing = os.dup(to_browser), os.dup(from_browser)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        self._process = subprocess.Popen([program, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--window-size={width},{height}",
                                          f"--user-data-dir={folder / 'profile'}", "about:blank"],
                                         preexec_fn=take_pipes, pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self._numbers, self._rest, self._session = itertools.count(1), b"", None
        self.errors = []
        target = next(t["targetId"] for t in self._call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime"):
            self._call(domain + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._out)  # which ends the browser
        self._process.wait(timeout=30)
        os.close(self._in)

    def _message(self):
        while b"\0" not in self._rest:
            read = os.read(self._in, 1 << 20)
            if not read:
                raise RuntimeError("the browser has ended")
            self._rest += read
        text, self._rest = self._rest.split(b"\0", 1)
        message = json.loads(text)
        if message.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.errors.append(message["params"])
        return message

    def _call(self, method, **params):
        number = next(self._numbers)
        text = json.dumps({"id": number, "method": method, "params": params, **({"sessionId": self._session} if self._session else {})})
        os.write(self._out, text.encode() + b"\0")
        while (answer := self._message()).get("id") != number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, page):
        """Returns when the page's scripts have run."""
        self._call("Page.navigate", url=page.as_uri())
        while self._message().get("method") != "Page.loadEventFired":
            pass

    def value(self, expression):
        """What a JavaScript expression is, as JSON."""
        result = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def press(self, key, shift=False):
        params = {"key": key, "modifiers": SHIFT if shift else 0}
        if key in KEY_CODES:
            params["windowsVirtualKeyCode"] = KEY_CODES[key]
        else:
            params["text"] = key
        self._call("Input.dispatchKeyEvent", type="keyDown", **params)
        self._call("Input.dispatchKeyEvent", type="keyUp", **params)

    def point_at(self, selector, across, down):
        """Moves the mouse over an element, to this share of its width and height."""
        box = self.value(f"(e => {{ e.scrollIntoView(); const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; }})"
                         f"(document.querySelector({json.dumps(selector)}))")
        where = {"x": box[0] + across * box[2], "y": box[1] + down * box[3]}
        self._call("Input.dispatchMouseEvent", type="mouseMoved", **where)
        return where

    def click(self, selector):
        where = self.point_at(selector, 0.5, 0.5)
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)

    def pdf(self):
        """The printed page, as bytes."""
        return base64.b64decode(self._call("Page.printToPDF", printBackground=False)["data"])

    def lay_out_for_print(self):
        """For the rest of the session."""
        self._call("Emulation.setEmulatedMedia", media="print")
