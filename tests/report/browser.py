"""A real browser for the tests of the report: Chromium, headless, driven by selenium."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

REQUIRED = "SOFTHULL_REQUIRE_BROWSER"  # set where missing browsers are failures, not reasons to skip
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)


def find_browser() -> tuple[str, str]:
    """Paths of Chromium and its driver; skips the test (or fails it, where browsers are required) without them."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if browser and driver:
        return browser, driver
    missing = "no Chromium with chromedriver found (Debian: apt-get install chromium chromium-driver)"
    if os.environ.get(REQUIRED):
        pytest.fail(missing)
    pytest.skip(f"browser tests skipped: {missing}")


def start_browser(profile: Path, width: int = 1280, height: int = 900, dark: bool = False) -> Any:
    """A browser with an empty profile, a window of that size and that preference of colours."""
    binary, driver = find_browser()
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    colours = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": colours})
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    return browser
