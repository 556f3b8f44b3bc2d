#include "runner/telemetry/mfu.h"

#include <array>
#include <cctype>

namespace lockstep {

namespace {

// Dense TFLOP/s from the vendor's data sheets, without sparsity; 0 = not a tensor-core format of this device.
// Matmuls with fp32 accumulation.
struct DevicePeak {
  std::string_view name;
  std::array<double, static_cast<size_t>(Precision::kFp16) + 1> of_precision;
};

// A name must come before any shorter name that it contains ("H100 PCIe" before "H100").
constexpr std::array kPeaks{
    DevicePeak{"H200", {66.9, 494.7, 989.4, 989.4}},
    DevicePeak{"H100 PCIe", {51.2, 378.0, 756.0, 756.0}},
    DevicePeak{"H100 NVL", {60.0, 417.5, 835.5, 835.5}},
    DevicePeak{"H100", {66.9, 494.7, 989.4, 989.4}},
    DevicePeak{"A100", {19.5, 156.0, 312.0, 312.0}},
    DevicePeak{"A30", {10.3, 82.0, 165.0, 165.0}},
    DevicePeak{"A10", {31.2, 62.5, 125.0, 125.0}},
    DevicePeak{"L40S", {91.6, 183.0, 362.0, 362.0}},
    DevicePeak{"L40", {90.5, 90.5, 181.0, 181.0}},
    DevicePeak{"L4", {30.3, 60.0, 121.0, 121.0}},
    DevicePeak{"T4", {8.1, 0.0, 0.0, 65.0}},
    DevicePeak{"RTX 4090", {82.6, 82.6, 165.2, 165.2}},
    DevicePeak{"RTX 3090", {35.6, 35.6, 71.0, 71.0}},
};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// "L4" is in "NVIDIA L4", not in "NVIDIA L40".
bool holds_word(std::string_view text, std::string_view word) {
  const size_t at = text.find(word);
  if (at == std::string_view::npos) return false;
  const size_t end = at + word.size();
  return (at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end]));
}

}  // namespace

std::optional<double> peak_flops_per_second(std::string_view device_name, Precision precision) {
  constexpr double kTera = 1e12;
  for (const DevicePeak& peak : kPeaks) {
    if (!holds_word(device_name, peak.name)) continue;
    const double tera = peak.of_precision.at(static_cast<size_t>(precision));
    if (tera == 0.0) return std::nullopt;
    return tera * kTera;
  }
  return std::nullopt;
}

FlopsFigures flops_figures(double flops_per_sample, double samples_per_second, std::optional<double> device_peak,
                           int world_size) {
  FlopsFigures figures;
  figures.model_flops_per_second = flops_per_sample * samples_per_second;
  if (device_peak) {
    figures.peak_flops_per_second = *device_peak * world_size;
    figures.mfu = figures.model_flops_per_second / *figures.peak_flops_per_second;
  }
  return figures;
}

}  // namespace lockstep
