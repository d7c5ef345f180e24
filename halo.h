// Everything a program needs.
#pragma once

#include <halo/autograd/arithmetic.h>
#include <halo/autograd/causal_conv1d.h>
#include <halo/autograd/conv.h>
#include <halo/autograd/engine.h>
#include <halo/autograd/grad_mode.h>
#include <halo/autograd/gradcheck.h>
#include <halo/autograd/local_response_norm.h>
#include <halo/autograd/long_conv.h>
#include <halo/autograd/norm.h>
#include <halo/autograd/pool.h>
#include <halo/autograd/unary.h>
#include <halo/core/generator.h>
#include <halo/core/parallel.h>
#include <halo/core/precision.h>
#include <halo/core/state_dict.h>
#include <halo/core/stream.h>
#include <halo/core/tensor.h>
#include <halo/io/checkpoint.h>
#include <halo/io/dlpack.h>
#include <halo/io/npy.h>
#include <halo/io/safetensors.h>
