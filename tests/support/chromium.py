"""A headless Chromium, driven by the DevTools protocol over a pipe: no driver, no port."""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_SECONDS = 30.0
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    # Whatever a page asks for elsewhere has no address.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
)


class Chromium:
    """A browser with one page.  requests: the addresses that it asked for.  complaints: what it
    wrote to its console, and what a policy of the page kept from happening.
    """

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to_browser = to_browser
        self._from_browser = from_browser
        self._buffer = bytearray()
        self._number = 0
        self._session = ""
        self._events: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def show(
        self, address: str, *, width: int = 1280, height: int = 900, theme: str = "light"
    ) -> None:
        """Open a page, and return after it was loaded.  theme: "light" or "dark"."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self._call("Emulation.setEmulatedMedia", features=features)
        self._events.clear()
        failure = self._call("Page.navigate", url=address).get("errorText")
        assert not failure, failure
        self._wait_for("Page.loadEventFired")

    def allow_scripts(self, allowed: bool) -> None:
        """Switch JavaScript off or on, for the pages that are opened from now on."""
        self._call("Emulation.setScriptExecutionDisabled", value=not allowed)

    def evaluate(self, expression: str) -> Any:
        """Return what a JavaScript expression is in the page; a promise is awaited."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path, *, is_whole: bool = True) -> None:
        """Write a PNG file of the page.  is_whole: not only the part in the window."""
        picture = self._call("Page.captureScreenshot", captureBeyondViewport=is_whole)
        path.write_bytes(base64.b64decode(picture["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        for answer in self._messages():
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
        raise AssertionError("the messages end only by an error")

    def _wait_for(self, event: str) -> None:
        if any(each["method"] == event for each in self._events):
            return
        for message in self._messages():
            if message.get("method") == event:
                return

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Yield messages as they arrive, and note the events among them."""
        end = time.monotonic() + _SECONDS
        while True:
            while b"\0" in self._buffer:
                text, _, rest = self._buffer.partition(b"\0")
                self._buffer = rest
                message = json.loads(text)
                self._note(message)
                yield message
            left = end - time.monotonic()
            assert left > 0, "Chromium does not answer"
            if select.select([self._from_browser], [], [], left)[0]:
                received = os.read(self._from_browser, 1 << 20)
                assert received, "Chromium has ended"
                self._buffer += received

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method is None:
            return
        self._events.append(message)
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Log.entryAdded":
            self.complaints.append(parameters["entry"]["text"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.complaints.append(json.dumps(parameters))


@contextmanager
def chromium(folder: Path, flags: Sequence[str] = ()) -> Iterator[Chromium]:
    """Run a browser for the duration of the with block.  folder: for its profile, a new one."""
    commands, to_browser = os.pipe()
    from_browser, answers = os.pipe()
    # It reads from descriptor 3 and writes to 4, which may be taken here.
    script = f'exec "$@" 3<&{commands} 4>&{answers}'
    with (folder / "chromium.log").open("w") as log:
        process = subprocess.Popen(
            [
                "bash",
                "-c",
                script,
                "bash",
                "chromium",
                *_FLAGS,
                f"--user-data-dir={folder}",
                *flags,
            ],
            pass_fds=(commands, answers),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    os.close(commands)
    os.close(answers)
    try:
        yield Chromium(to_browser, from_browser)
    finally:
        os.close(to_browser)
        os.close(from_browser)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
