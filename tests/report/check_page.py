#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of mica-report in a real browser, without its window: texts and values there, no errors, both widths, light and dark.

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
