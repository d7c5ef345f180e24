// Whole models as reference cases: outputs, loss, and the gradient of every parameter.
#pragma once

#include "tests/conformance/case.h"

namespace halo::conformance {

void run_alexnet(Case& c, Result& result);
void run_hyenadna(Case& c, Result& result);

}  // namespace halo::conformance
