#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of mica-report in a real browser, without its window: texts and values there, no errors, both widths, light and dark; what the
mouse and the keyboard do; the printed page.

    tests/report/check_page.py MICA_REPORT BROWSER [--keep=FOLDER] [--large]

BROWSER is chromium or chromium-headless-shell. --keep leaves the page and pictures of it there, for a look. --large, by hand: 100,000 steps
of 64 ranks with 1 GB of traces, and measures size, memory and time.
"""
import argparse
import html
import pathlib
import re
import resource
import struct
import subprocess
import sys
import tempfile
import time

from browser import Browser

MAKE_RUN = pathlib.Path(__file__).with_name("make_run.py")


def browse(browser, page, *flags):
    """@returns what the browser printed, and what its console said."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr", "--user-data-dir=" + str(page.parent / "profile"),
               *flags, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def expect(condition, text):
    if not condition:
        sys.exit(f"check_page: {text}")


def expect_texts(dom, texts):
    seen = html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"<(script|style)\b.*?</\1>", "", dom, flags=re.S))))
    for text in texts:
        expect(text in seen, f"'{text}' is not on the page: {seen[:3000]}")


def make(report, folder, runs, *flags):
    page = folder / "page.html"
    subprocess.run([report, *map(str, runs), f"--out={page}", *flags], check=True, stdout=subprocess.DEVNULL)
    return page


def check(report, browser, folder):
    one, two = folder / "one", folder / "two"
    subprocess.run([MAKE_RUN, one, "--steps=2000"], check=True)
    subprocess.run([MAKE_RUN, two, "--steps=1000", "--trace-mb=0", "--seed=2"], check=True)
    for folder_of_run, lr in ((one, 0.001), (two, 0.002)):
        (folder_of_run / "config.resolved.cfg").write_text(f"[optim]\nlr = {lr}\n")

    page = make(report, folder, [one], "--gflops-per-rank=500")
    dom, said = browse(browser, page, "--virtual-time-budget=3000", "--dump-dom")
    expect(not said, f"the console said {said}")
    expect("data-errors" not in dom and "data-ready-ms" in dom, "the page's program did not come to its end")
    expect_texts(dom, ["2,000 of 2,000", "131.1 M", "3.1023 after step 2,000", "CPU, 4 OpenMP threads a rank", "% of product bound", "rank 5 up to step",
                       "700 MiB", "1.563 GiB", "Rank 0, step 11: 188.7 ms", "96.7 % of the communication was hidden", "reduce_scatter h.", "List of 15 events",
                       "resumed from checkpoints/step-00001500 on 8 ranks", "</script><b>not bold</b> (3 times)", "rank 3 was lost", "optim.lr 0.001"])
    expect(dom.count('class="uplot') == 3 and dom.count("<canvas") == 5, "not all charts are drawn")

    check_by_hand(browser, page, folder)

    page = make(report, folder, [one, two])
    dom, said = browse(browser, page, "--virtual-time-budget=3000", "--dump-dom")
    expect(not said and "data-errors" not in dom, f"two runs: the console said {said}")
    expect_texts(dom, ["one validation", "two loss", "optim.lr 0.001 0.002"])

    sizes = {}
    for width in (420, 1280):
        for scheme, flag in (("light", "1"), ("dark", "0")):
            picture = folder / f"{scheme}-{width}.png"
            _, said = browse(browser, page, "--virtual-time-budget=3000", f"--blink-settings=preferredColorScheme={flag}", f"--window-size={width},5000", f"--screenshot={picture}")
            expect(not said, f"{picture.name}: the console said {said}")
            expect(struct.unpack(">II", picture.read_bytes()[16:24]) == (width, 5000), f"{picture.name} has another size")
            sizes[scheme, width] = picture.stat().st_size
    expect(min(sizes.values()) > 40_000, f"a picture is nearly empty: {sizes}")


TOLD = "document.querySelector('#{} .told').textContent"
LOSS_VALUES = "[...document.querySelectorAll('#loss .u-legend .u-value')].map(e => e.textContent)"
THEME = "document.documentElement.dataset.theme"


def check_mouse(page):
    page.point_at("#loss .u-over", 0.5, 0.5)
    step, loss, validation = page.value(LOSS_VALUES)
    expect(step == "1,000" and 3 < float(loss) < 3.5 and 3 < float(validation) < 3.5, f"in the middle of the curve it says {step}, {loss}, {validation}")
    page.point_at("#skew canvas", 0.5, 0.1)
    told = page.value(TOLD.format("skew"))
    expect(re.fullmatch(r"rank 0, up to step 9[0-9]0: 1[0-9.]+ ms of its own per step, median 102.9 ms \(.*%\)", told), f"the heat map says {told}")
    page.point_at("#trace canvas", 0.5, 0.3)
    expect(page.value(TOLD.format("trace")).startswith("compute: "), f"the timeline says {page.value(TOLD.format('trace'))}")
    page.point_at(".strip button", 0.5, 0.5)
    expect("Step " in page.value(TOLD.format("events")), "an event says nothing")


def check_keyboard(page):
    """Everything is reached with Tab, and moves with the keys that the page names."""
    reached = []
    while len(reached) < 200 and reached.count("run") < 2:
        page.press("Tab")
        reached.append(page.value("(e => e.id || e.getAttribute('aria-label') || e.tagName)(document.activeElement)"))
        label = reached[-1]
        if label.startswith("Loss and validation"):
            check_curve_keys(page)
        if label.startswith("Heat map"):
            page.press("ArrowDown")  # begins at the worst
            worst = page.value(TOLD.format("skew"))
            page.press("ArrowUp")
            above = page.value(TOLD.format("skew"))
            expect(worst.startswith("rank 5,") and above.startswith("rank 4,"), f"keys on the heat map: {worst}; {above}")
        if label.startswith("Timeline"):
            told = []
            for key in ("ArrowRight", "ArrowRight", "ArrowDown", "+", "0"):
                page.press(key)
                told.append(page.value(TOLD.format("trace")))
            expect(len(set(told[:3])) == 3 and told[2] == told[4] and told[2].startswith("unshard: "), f"keys on the timeline: {told}")
    for label in ("run", "theme", "axis", "smooth", "log", "Loss and validation loss over step", "Tokens a second", "Parts of a step's time",
                  "Heat map of ranks and steps", "trace-rank", "Timeline of rank 0", "SUMMARY"):
        expect(label in reached, f"Tab does not reach '{label}', but {reached}")


def check_curve_keys(page):
    steps = []
    for key, shift in (("Home", False), ("ArrowRight", False), ("ArrowRight", True), ("End", False), ("ArrowLeft", False), ("+", False), ("-", False), ("0", False)):
        page.press(key, shift)
        steps.append(page.value(LOSS_VALUES)[0])
    expect(steps == ["1", "2", "12", "2,000", "1,999", "1,999", "1,999", "1,999"], f"keys on a curve move to steps {steps}")


def check_controls(page):
    page.value("(e => { e.value = 'tokens'; e.dispatchEvent(new Event('input')); })(document.getElementById('axis'))")
    expect(page.value("document.querySelector('#loss .uplot').getAttribute('aria-label')") == "Loss and validation loss over tokens", "the axis stays")
    page.value("(e => { e.value = '0.9'; e.dispatchEvent(new Event('input')); })(document.getElementById('smooth'))")
    expect(page.value("document.getElementById('smooth-value').value") == "0.90", "smoothing stays")
    expect("smoothed" in page.value("document.getElementById('loss').textContent"), "the smoothed curve is missing")
    page.click("#log")
    expect(page.value("document.getElementById('log').checked"), "no log scale")


def check_print(page):
    """On paper: light, whatever the screen shows, and no wider than the paper."""
    if page.value(THEME) != "dark":
        page.click("#theme")
    page.value("addEventListener('beforeprint', () => document.title = document.documentElement.dataset.theme)")
    printed = page.pdf()
    pages = len(re.findall(rb"/Type\s*/Page\b", printed))
    expect(printed.startswith(b"%PDF") and 2 <= pages <= 5, f"printed on {pages} pages")
    expect(page.value("document.title") == "light" and page.value(THEME) == "dark", "printed as dark as the screen, or the screen has changed")
    page.lay_out_for_print()
    page.value("document.body.style.width = '700px'")
    too_wide = page.value("[...document.querySelectorAll('main canvas, main table, .u-legend')].filter(e => e.getBoundingClientRect().right > document.body.getBoundingClientRect().right)"
                          ".map(e => (e.getAttribute('aria-label') || e.className || e.tagName) + ' ' + e.getBoundingClientRect().right)")
    expect(too_wide == [], f"wider than the paper: {too_wide}")


def check_by_hand(browser, page, folder):
    with Browser(browser, folder) as opened:
        # The keyboard comes first: a mouse that was moved points at what scrolls below it.
        for part in (check_keyboard, check_mouse, check_controls, check_print):
            opened.open(page)
            part(opened)
        expect(not opened.errors, f"the page's program failed: {opened.errors}")


def measure(report, browser, folder):
    run = folder / "large"
    subprocess.run([MAKE_RUN, run, "--steps=100000", "--ranks=64", "--trace-mb=1000"], check=True)
    begin = time.monotonic()
    page = make(report, folder, [run])
    seconds = time.monotonic() - begin
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024  # of the largest: make_run.py takes 12 MiB
    dom, said = browse(browser, page, "--timeout=20000", "--dump-dom")
    ready = int(re.search(r'data-ready-ms="(\d+)"', dom).group(1))
    print(f"page of {page.stat().st_size / 1e6:.2f} MB, made in {seconds:.0f} s with {memory:.0f} MiB, ready after {ready} ms")
    expect(not said and page.stat().st_size <= 2e6 and memory <= 200 and ready <= 1000, "that is too much")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report")
    parser.add_argument("browser")
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--large", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        (measure if args.large else check)(args.report, args.browser, folder)


if __name__ == "__main__":
    main()
