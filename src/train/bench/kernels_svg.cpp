// SPDX-License-Identifier: Apache-2.0
#include "kernels_svg.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace mica::train::bench {
namespace {

constexpr double kLeft = 70, kTop = 60, kWidth = 440, kHeight = 340, kGap = 200, kBar = 22;
constexpr std::size_t kMostBars = 14;
constexpr double kLeastShare = 0.0005;

double share(const KernelTime& kernel, const StepTimes& times) { return kernel.seconds / times.seconds; }

/// FLOP/s over FLOPs per byte, both logarithmic.
std::string roofline(const StepTimes& times) {
  double lowest = 1, highest = 1;
  for (const KernelTime& k : times.kernels) {
    if (k.flops == 0) continue;
    highest = std::max(highest, k.flops / k.bytes);
    lowest = std::min(lowest, k.flops / k.bytes);
  }
  // Exponents of 10 at the ends of the axes.
  const int first = static_cast<int>(std::floor(std::log10(lowest))), last = static_cast<int>(std::ceil(std::log10(highest)));
  const int top = static_cast<int>(std::ceil(std::log10(times.product_flops_per_s))), bottom = top - 3;
  const auto x = [&](double intensity) { return kLeft + kWidth * (std::log10(intensity) - first) / (last - first); };
  const auto y = [&](double rate) { return kTop + kHeight * std::clamp(1 - (std::log10(rate) - bottom) / (top - bottom), 0.0, 1.0); };
  std::string svg = fmt::format("<text x='{}' y='{}' class='title'>Tasks with products: GFLOP/s</text>\n", kLeft, kTop - 12);
  for (int power = bottom; power <= top; ++power) {
    const double at = y(std::pow(10, power));
    svg +=
        fmt::format("<line x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}' class='grid'/><text x='{}' y='{:.1f}' text-anchor='end'>{:g}</text>\n",
                    kLeft, kLeft + kWidth, at, at, kLeft - 6, at + 4, std::pow(10, power - 9));
  }
  for (int power = first; power <= last; ++power) {
    svg += fmt::format("<text x='{:.1f}' y='{}' text-anchor='middle'>{:g}</text>\n", x(std::pow(10, power)), kTop + kHeight + 18,
                       std::pow(10, power));
  }
  svg += fmt::format("<text x='{}' y='{}' text-anchor='middle'>FLOPs per byte</text>\n", kLeft + kWidth / 2, kTop + kHeight + 36);
  const double ridge = times.product_flops_per_s / times.copy_bytes_per_s;
  const double begin = std::max(std::pow(10, first), std::pow(10, bottom) / times.copy_bytes_per_s);
  const double knee = std::clamp(ridge, begin, std::pow(10, last));
  svg += fmt::format(
      "<polyline points='{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f}' class='roof'><title>copy {:.1f} GB/s, product {:.0f} GFLOP/s"
      "</title></polyline>\n",
      x(begin), y(begin * times.copy_bytes_per_s), x(knee), y(knee * times.copy_bytes_per_s), x(std::pow(10, last)),
      y(times.product_flops_per_s), times.copy_bytes_per_s * 1e-9, times.product_flops_per_s * 1e-9);
  int number = 0;
  for (const KernelTime& k : times.kernels) {
    if (k.flops == 0) continue;
    ++number;
    const double at_x = x(k.flops / k.bytes), at_y = y(k.flops / k.seconds);
    svg +=
        fmt::format("<circle cx='{:.1f}' cy='{:.1f}' r='{:.1f}' class='dot'/><text x='{:.1f}' y='{:.1f}' text-anchor='middle'>{}</text>\n",
                    at_x, at_y, 3 + 20 * std::sqrt(share(k, times)), at_x, at_y + 4, number);
    svg += fmt::format("<text x='{}' y='{:.1f}'>{} {}: {:.0f} GFLOP/s, {:.1f} % of the step</text>\n", kLeft + kWidth / 4,
                       kTop + kHeight / 2 + 16.0 * number, number, k.task, k.flops / k.seconds * 1e-9, 100 * share(k, times));
  }
  return svg;
}

/// Bars of the other tasks' bandwidth, the longest tasks first.
std::string bandwidths(const StepTimes& times) {
  const double left = kLeft + kWidth + kGap;
  std::vector<const KernelTime*> shown;
  double highest = 0;
  for (const KernelTime& k : times.kernels) {
    if (k.flops > 0 || k.bytes == 0 || share(k, times) < kLeastShare || shown.size() == kMostBars) continue;
    shown.push_back(&k);
    highest = std::max({highest, k.bytes / k.seconds, k.bytes / k.copy_seconds});
  }
  std::string svg =
      fmt::format("<text x='{}' y='{}' class='title'>Other tasks: GB/s; the line: a copy of as many bytes</text>\n", left, kTop - 12);
  double at = kTop;
  for (const KernelTime* k : shown) {
    const double rate = k->bytes / k->seconds, copy = k->bytes / k->copy_seconds;
    svg += fmt::format(
        "<text x='{}' y='{:.1f}' text-anchor='end'>{}</text><rect x='{}' y='{:.1f}' width='{:.1f}' height='{}' class='dot'>"
        "<title>{:.1f} GB/s, copy {:.1f} GB/s</title></rect><line x1='{:.1f}' x2='{:.1f}' y1='{:.1f}' y2='{:.1f}' class='roof'/>"
        "<text x='{}' y='{:.1f}'>{:.1f} ({:.1f} % of the step)</text>\n",
        left - 6, at + 14, k->task, left, at + 2, kWidth * rate / highest, kBar - 6, rate * 1e-9, copy * 1e-9,
        left + kWidth * copy / highest, left + kWidth * copy / highest, at, at + kBar - 2, left + kWidth + 8, at + 14, rate * 1e-9,
        100 * share(*k, times));
    at += kBar;
  }
  return svg;
}

}  // namespace

std::string kernels_svg(const std::string& title, const StepTimes& times) {
  return fmt::format(
             "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {} {}' font-family='sans-serif' font-size='12'>\n"
             "<style>svg{{background:#fff}}text{{fill:#222}}.title{{font-weight:bold}}.grid{{stroke:#ddd}}.dot{{fill:#1f77b4;fill-opacity:.6}}"
             ".roof{{stroke:#d62728;fill:none;stroke-width:2}}@media(prefers-color-scheme:dark){{svg{{background:#181818}}text{{fill:#ddd}}"
             ".grid{{stroke:#444}}}}</style>\n<text x='{}' y='22' class='title' font-size='14'>{}</text>\n",
             kLeft + 2 * kWidth + kGap + 160, kTop + kHeight + 60, kLeft, title) +
         roofline(times) + bandwidths(times) + "</svg>\n";
}

}  // namespace mica::train::bench
