// SPDX-License-Identifier: Apache-2.0
#include "scaling_svg.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include <fmt/format.h>

namespace mica::train {
namespace {

constexpr std::array<const char*, 6> kColors{"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf"};
constexpr double kLeft = 70, kWidth = 360, kTop = 60, kHeight = 240, kGap = 110;

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) safe += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return safe;
}

/// The distance of ticks: 1, 2 or 5 times a power of ten, with about five ticks up to `highest`.
double tick_of(double highest) {
  const double power = std::pow(10, std::floor(std::log10(std::max(highest, 1e-9) / 5)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (highest / (factor * power) <= 6) return factor * power;
  }
  return 10 * power;
}

struct Panel {
  double left;
  const char* title;
  std::function<double(const ScalingPoint&)> value;
};

std::string draw(const Panel& panel, const std::vector<ScalingLine>& lines) {
  double highest = 0, first = 1e9, last = 1;
  for (const ScalingLine& line : lines) {
    for (const ScalingPoint& p : line.points) {
      highest = std::max(highest, panel.value(p));
      first = std::min(first, static_cast<double>(p.num_ranks));
      last = std::max(last, static_cast<double>(p.num_ranks));
    }
  }
  const double tick = tick_of(highest), top = tick * std::max(1.0, std::ceil(highest / tick));
  const auto x = [&](double ranks) {
    return panel.left + (last > first ? std::log2(ranks / first) / std::log2(last / first) : 0.5) * kWidth;
  };
  const auto y = [&](double value) { return kTop + kHeight * (1 - value / top); };
  std::string svg = fmt::format("<text x='{}' y='{}' class='title'>{}</text>\n", panel.left, kTop - 12, panel.title);
  for (double value = 0; value <= top * 1.001; value += tick) {
    svg +=
        fmt::format("<line x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}' class='grid'/><text x='{}' y='{:.1f}' text-anchor='end'>{:g}</text>\n",
                    panel.left, panel.left + kWidth, y(value), y(value), panel.left - 6, y(value) + 4, value);
  }
  const double doublings = std::max(1.0, std::ceil(std::log2(last / first) / 7));
  for (double ranks = first; ranks <= last; ranks *= std::exp2(doublings)) {
    svg += fmt::format("<text x='{:.1f}' y='{}' text-anchor='middle'>{}</text>\n", x(ranks), kTop + kHeight + 18, ranks);
  }
  svg += fmt::format("<text x='{}' y='{}' text-anchor='middle'>ranks</text>\n", panel.left + kWidth / 2, kTop + kHeight + 36);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const char* color = kColors[i % kColors.size()];
    std::string points;
    for (const ScalingPoint& p : lines[i].points) points += fmt::format("{:.1f},{:.1f} ", x(p.num_ranks), y(panel.value(p)));
    svg += fmt::format("<polyline points='{}' fill='none' stroke='{}' stroke-width='2'/>\n", points, color);
    for (const ScalingPoint& p : lines[i].points) {
      svg += fmt::format("<circle cx='{:.1f}' cy='{:.1f}' r='3' fill='{}'><title>{}, {} ranks: {:.4g}</title></circle>\n", x(p.num_ranks),
                         y(panel.value(p)), color, escaped(lines[i].name), p.num_ranks, panel.value(p));
    }
  }
  return svg;
}

}  // namespace

std::string scaling_svg(const std::string& title, const std::vector<ScalingLine>& lines) {
  const double width = kLeft + 2 * kWidth + kGap + 20, height = kTop + kHeight + 60 + 20 * static_cast<double>(lines.size());
  std::string svg = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {} {}' font-family='sans-serif' font-size='12'>\n"
      "<style>svg{{background:#fff}}text{{fill:#222}}.title{{font-weight:bold}}.grid{{stroke:#ddd}}"
      "@media(prefers-color-scheme:dark){{svg{{background:#181818}}text{{fill:#ddd}}.grid{{stroke:#444}}}}</style>\n"
      "<text x='{}' y='22' class='title' font-size='14'>{}</text>\n",
      width, height, kLeft, escaped(title));
  svg += draw({kLeft, "step, ms", [](const ScalingPoint& p) { return p.step_ms; }}, lines);
  svg += draw({kLeft + kWidth + kGap, "MFU, %", [](const ScalingPoint& p) { return 100 * p.mfu; }}, lines);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const double at = kTop + kHeight + 60 + 20 * static_cast<double>(i);
    svg += fmt::format("<line x1='{}' x2='{}' y1='{}' y2='{}' stroke='{}' stroke-width='2'/><text x='{}' y='{}'>{}</text>\n", kLeft,
                       kLeft + 24, at, at, kColors[i % kColors.size()], kLeft + 32, at + 4, escaped(lines[i].name));
  }
  return svg + "</svg>\n";
}

}  // namespace mica::train
