"""A headless Chromium driven over a pipe (the devtools protocol), for the tests of the HTML reports."""
import base64
import io
import json
import os
import shutil
import subprocess
import tempfile
import time

import pytest


FONTS = "/usr/share/fonts/truetype/dejavu"


class Browser:
    """One Chromium with one page. Everything the page logs as an error, throws or asks the network for is kept."""

    def __init__(self):
        program = os.environ.get("KVCC_CHROMIUM") or shutil.which("chromium")
        if not program:
            pytest.skip("SKIPPED: no chromium on this machine ('make browser' installs it)")
        self.folder = tempfile.TemporaryDirectory(prefix="kvcc-browser-", ignore_cleanup_errors=True)
        # One font, so that pages look the same on every machine.
        if not os.path.exists(FONTS):
            pytest.skip(f"SKIPPED: no fonts in {FONTS} ('make browser' installs them)")
        fonts = os.path.join(self.folder.name, "fonts.conf")
        with open(fonts, "w") as file:
            accepted = "".join(f"<glob>{FONTS}/{name}.ttf</glob>"
                               for name in ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono", "DejaVuSansMono-Bold"))
            rules = "".join(
                f"<match target='pattern'><test name='family'><string>{family}</string></test>"
                f"<edit name='family' mode='prepend' binding='strong'><string>{font}</string></edit></match>"
                for family, font in (("system-ui", "DejaVu Sans"), ("sans-serif", "DejaVu Sans"),
                                     ("ui-monospace", "DejaVu Sans Mono"), ("monospace", "DejaVu Sans Mono")))
            file.write(f"<fontconfig><dir>{FONTS}</dir><cachedir>{self.folder.name}/fonts</cachedir><selectfont>"
                       f"<acceptfont>{accepted}</acceptfont><rejectfont><glob>*</glob></rejectfont></selectfont>{rules}"
                       "</fontconfig>")
        to_read, to_write = os.pipe(), os.pipe()

        def pipes():  # the protocol's pipe is descriptors 3 and 4
            read, write = os.dup(to_read[0]), os.dup(to_write[1])
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-component-update",
             "--disable-sync", "--force-color-profile=srgb", "--font-render-hinting=none", "--force-device-scale-factor=1",
             f"--user-data-dir={self.folder.name}/profile", "--remote-debugging-pipe", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=pipes, close_fds=False,
            env={**os.environ, "FONTCONFIG_FILE": fonts})
        os.close(to_read[0])
        os.close(to_write[1])
        self.input, self.output = os.fdopen(to_read[1], "wb"), os.fdopen(to_write[0], "rb")
        self.next, self.session, self.buffer, self.errors, self.requests = 0, None, b"", [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def close(self):
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(10)
        except Exception:
            self.process.kill()
            self.process.wait()
        self.input.close()
        self.output.close()
        self.folder.cleanup()

    def read(self):
        while b"\0" not in self.buffer:
            part = os.read(self.output.fileno(), 1 << 20)
            assert part, "chromium ended"
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.next += 1
        message = {"id": self.next, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.input.write(json.dumps(message).encode() + b"\0")
        self.input.flush()
        while True:
            answer = self.read()
            if answer.get("id") == self.next:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.note(answer)

    def note(self, event):
        method, values = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(values["exceptionDetails"].get("exception", {}).get("description", str(values)))
        elif method == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
            self.errors.append(str(values["args"]))
        elif method == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            self.errors.append(values["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])

    def evaluate(self, expression):
        """Of a JavaScript expression; promises are waited for."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def settle(self):
        """Two frames, so that observers of sizes have run."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 30))))")

    def wait(self, expression, seconds=20):
        end = time.monotonic() + seconds
        while not self.evaluate(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.02)

    def view(self, width, height=900, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"}])
        self.settle()

    def open(self, path, fragment=""):
        self.errors.clear()
        self.requests.clear()
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=f"file://{path}{fragment}")
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")
        self.settle()

    def box(self, selector):
        """x, y, width, height on the page."""
        return self.evaluate("(() => { const b = document.querySelector(%s).getBoundingClientRect();"
                             "return [b.x + scrollX, b.y + scrollY, b.width, b.height]; })()" % json.dumps(selector))

    def click(self, selector):
        """With the mouse, in the middle of the element."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        x, y, width, height = self.evaluate(
            "(() => { const b = document.querySelector(%s).getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()"
            % json.dumps(selector))
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x + width / 2, y=y + height / 2, button="left", clickCount=1)
        self.settle()

    def press(self, key):
        codes = {"Enter": 13, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "ArrowUp": 38, "ArrowDown": 40, "End": 35, "Home": 36, " ": 32}
        text = {"Enter": "\r", " ": " "}.get(key)
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key],
                      **({"text": text} if text and kind == "keyDown" else {}))
        self.settle()

    def type(self, text):
        self.call("Input.insertText", text=text)
        self.settle()

    def accessible(self):
        """(role, name) of everything that a screen reader is told."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n["ignored"]]

    def picture(self, full=True):
        """PNG of the whole page, or of what is in view."""
        from PIL import Image
        clip = {}
        if full:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}, "captureBeyondViewport": True}
        return Image.open(io.BytesIO(base64.b64decode(self.call("Page.captureScreenshot", format="png", **clip)["data"]))).convert("RGB")

    def downloads(self, action, name, seconds=20):
        """Runs `action`; the text of the file `name` that the page then hands over."""
        folder = os.path.join(self.folder.name, "downloads")
        session, self.session = self.session, None
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=folder)
        self.session = session
        action()
        path, end = os.path.join(folder, name), time.monotonic() + seconds
        while not os.path.exists(path):
            assert time.monotonic() < end, f"no download {name}"
            self.settle()
        time.sleep(0.1)
        with open(path, newline="") as file:
            return file.read()
