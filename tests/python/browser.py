"""A headless Chromium, driven over its debugging pipe (the Chrome DevTools Protocol), without another package."""
import fcntl
import json
import os
import select
import shutil
import subprocess
import time


class Browser:
    """One page. To wait for something is to ask the browser until it holds."""

    def __init__(self, folder, width=1100, height=900):
        program = shutil.which("chromium")
        assert program, "chromium is not on PATH: run scripts/setup test"
        to_browser, self._write = self._pipe()
        self._read, from_browser = self._pipe()
        # The browser reads commands from descriptor 3 and answers on 4.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", program, "--headless=new",
             "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             f"--user-data-dir={folder}/browser"],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self._unread = b""
        self._next = 0
        self._session = None
        self._loaded = 0  # pages
        self.errors = []  # exceptions that no script of the page caught
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Runtime.enable")
        self._call("Page.enable")
        self.resize(width, height)

    @staticmethod
    def _pipe():
        """Both ends above 9, so that they do not collide with the browser's 3 and 4."""
        high = []
        for end in os.pipe():
            high.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10))
            os.close(end)
        return high

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def _message(self, timeout=60):
        """The next answer or event."""
        deadline = time.monotonic() + timeout
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"no answer from the browser within {timeout} s"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has ended"
            self._unread += piece
        text, self._unread = self._unread.split(b"\0", 1)
        message = json.loads(text)
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(message["params"]["exceptionDetails"])
        self._loaded += message.get("method") == "Page.loadEventFired"
        return message

    def _call(self, method, **parameters):
        self._next += 1
        command = {"id": self._next, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == self._next:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]

    def resize(self, width, height):
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme):
        """"light" or "dark"."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url):
        before = self._loaded
        self._call("Page.navigate", url=url)
        while self._loaded == before:
            self._message()

    def value(self, expression):
        """Of a JavaScript expression, as JSON."""
        result = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, f"{expression}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def wait_for(self, expression, timeout=60):
        """Until the expression is true; its value."""
        deadline = time.monotonic() + timeout
        while not (found := self.value(expression)):
            assert time.monotonic() < deadline, f"not within {timeout} s: {expression}; the page says:\n{self.text()}"
            select.select([], [], [], 0.05)
        return found

    def text(self):
        return self.value("document.body.innerText")

    def point_at(self, selector, part=0.5):
        """The pointer goes to the middle of the element's height, at this part of its width."""
        self.value(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        box = self.value(f"(b => [b.x, b.y, b.width, b.height])(document.querySelector({json.dumps(selector)})"
                         ".getBoundingClientRect())")
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + box[2] * part, y=box[1] + box[3] / 2)

    def press(self, key):
        for kind in ("rawKeyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key)
