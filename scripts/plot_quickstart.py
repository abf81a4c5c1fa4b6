#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws a run's loss and step time as an SVG: scripts/plot_quickstart.py RUN/metrics.jsonl [OUT.svg]

README.md shows the picture of the quickstart's run, docs/pictures/quickstart.svg (the default of OUT). Needs no packages.
Times are means over `train.log_interval` steps, as metrics.jsonl has them.
"""
import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH, HEIGHT = 860, 300
TOP, BOTTOM = 46, 252          # of both panels' plot areas, in pixels
PANELS = (52, 410), (480, 838)  # left and right edge of each
INK, GRID, BLUE, ORANGE = "#333", "#e4e4e4", "#2266aa", "#cc5500"


def nice_step(span, count):
    """A step of 1, 2 or 5 times a power of ten that cuts `span` into about `count` parts."""
    power = 10 ** math.floor(math.log10(span / count))
    return next(power * m for m in (1, 2, 5, 10) if power * m * count >= span)


class Panel:
    """One plot: `x` are steps from 0 to `last`, `y` goes from `low` up to a round number above `high`."""

    def __init__(self, edges, title, last, low, high):
        self.left, self.right = edges
        self.last, self.low = last, low
        self.step = nice_step(high - low, 5)
        self.high = low + self.step * math.ceil((high - low) / self.step)
        self.parts = [f'<text x="{self.left}" y="24" font-size="14" font-weight="bold">{title}</text>']

    def x(self, step):
        return self.left + (self.right - self.left) * step / self.last

    def y(self, value):
        return BOTTOM - (BOTTOM - TOP) * (value - self.low) / (self.high - self.low)

    def axes(self):
        value = self.low
        while value <= self.high + self.step / 2:
            y = self.y(value)
            self.parts.append(f'<path d="M{self.left} {y:.1f}H{self.right}" stroke="{GRID}"/>'
                              f'<text x="{self.left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
            value += self.step
        for at in range(0, self.last + 1, max(1, int(nice_step(self.last, 4)))):
            self.parts.append(f'<text x="{self.x(at):.1f}" y="{BOTTOM + 17}" text-anchor="middle">{at}</text>')
        self.parts.append(f'<text x="{(self.left + self.right) / 2}" y="{BOTTOM + 36}" text-anchor="middle">step</text>')

    def line(self, points, colour):
        path = "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)
        self.parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')

    def area(self, points, colour):
        path = "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)
        first, last = self.x(points[0][0]), self.x(points[-1][0])
        self.parts.append(f'<path d="M{first:.1f} {BOTTOM}L{path}L{last:.1f} {BOTTOM}Z" fill="{colour}" fill-opacity="0.25"/>')

    def label(self, step, value, text, colour):
        self.parts.append(f'<text x="{self.x(step):.1f}" y="{self.y(value):.1f}" fill="{colour}" text-anchor="end">{text}</text>')


def draw(rows):
    steps = [row for row in rows if row["event"] == "step"]
    evals = [row for row in rows if row["event"] == "eval"]
    last = steps[-1]["step"]

    losses = [(row["step"], row["loss"]) for row in steps]
    loss = Panel(PANELS[0], "loss, nats per token", last, 0, max(value for _, value in losses))
    loss.axes()
    loss.line(losses, BLUE)
    loss.label(last, losses[-1][1] - 0.07 * loss.high, "training", BLUE)
    for row in evals:
        loss.parts.append(f'<circle cx="{loss.x(row["step"]):.1f}" cy="{loss.y(row["val_loss"]):.1f}" r="4" fill="{ORANGE}"/>')
    if evals:
        loss.label(last, evals[-1]["val_loss"] + 0.05 * loss.high, f'validation {evals[-1]["val_loss"]:.2f}', ORANGE)

    times = [(row["step"], row["step_ms"]) for row in steps]
    waits = [(row["step"], row["comm_wait_ms"]) for row in steps]
    time = Panel(PANELS[1], "time of a step, ms", last, 0, max(value for _, value in times))
    time.axes()
    time.area(waits, ORANGE)
    time.line(times, BLUE)
    time.label(last, times[-1][1] - 0.08 * time.high, "whole step", BLUE)
    time.label(last, waits[-1][1] + 0.1 * time.high, "of which waiting for communication", ORANGE)

    body = "\n".join(loss.parts + time.parts)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'font-family="sans-serif" font-size="12" fill="{INK}">\n'
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="white"/>\n{body}\n</svg>\n')


def fail(why):
    print(f"mica: error: {why}", file=sys.stderr)
    sys.exit(2)


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip())
        return
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
    except (OSError, ValueError) as error:
        fail(f"{sys.argv[1]}: {getattr(error, 'strerror', None) or error}")
    if not any(row.get("event") == "step" for row in rows):
        fail(f"{sys.argv[1]}: no row of a training step; give the metrics.jsonl of a run")
    out = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else ROOT / "docs" / "pictures" / "quickstart.svg"
    out.write_text(draw(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
