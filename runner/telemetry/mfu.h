// Model FLOP/s utilisation: achieved model FLOP/s over the devices' dense peak. Pure.
// Units: FLOP/s of one device for peaks; a multiply-add counts as two.
#pragma once

#include <optional>
#include <string_view>

#include "runner/config/run_config.h"

namespace lockstep {

// Dense peak of one device at `precision`, from the vendor's data sheets; nullopt for a CPU, an unknown device, or a
// precision that the device's tensor cores do not support. `device_name`: as the driver reports it ("NVIDIA H100 80GB
// HBM3").
std::optional<double> peak_flops_per_second(std::string_view device_name, Precision precision);

struct FlopsFigures {
  double model_flops_per_second = 0.0;                         // all ranks together
  std::optional<double> peak_flops_per_second = std::nullopt;  // all ranks together
  std::optional<double> mfu = std::nullopt;
};

// `samples_per_second`: all ranks together. `device_peak`: of one rank's device.
FlopsFigures flops_figures(double flops_per_sample, double samples_per_second, std::optional<double> device_peak,
                           int world_size);

}  // namespace lockstep
